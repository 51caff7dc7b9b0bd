"""What a supervisor keeps running: a `Child`, when it is started again, and its process."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stateline.processes.readiness import ReadyPipe

CALLERS_MISTAKE = 2  # the exit code of the command line for errors that a restart cannot cure
STORES_REFUSED = 3  # no worker may run these stores, but servers answer their last committed state

# What a process is told whose successor works already: take nothing more, end what was begun, and go.
HAND_OVER = signal.SIGUSR1

# What tells a worker to leave its group for good when it stops: others are to have its tasks at once.
LEAVE = signal.SIGUSR2


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running. Children of a lower `stop_order` are stopped, and gone, before others."""

    name: str
    command: Sequence[str]
    stop_order: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    pass_fds: Sequence[int] = ()
    """Open files of the supervisor's that the child inherits, under the same numbers."""
    fails_alone: bool = False
    """Its mistakes stop nothing but itself, as long as there are others."""
    says_ready: bool = False
    """It says when it does its work (`ReadySignal`), if somebody waits for that."""
    answers: bool = False
    """It takes connections at the supervisor's listeners once it has said that it is ready."""
    takes_over: bool = False
    """New code: it starts beside the process that has the old, and that goes when this one is ready."""
    leaves_by: signal.Signals = signal.SIGTERM
    """What lets it go when another process takes its place."""
    quits_by: signal.Signals = signal.SIGTERM
    """What ends it when the application cannot run here."""
    stop_timeout_s: float = 0.0
    """How long it may take to stop before it is killed, where that is longer than the supervisor's timeout."""


@dataclass(slots=True)
class RestartPolicy:
    """When an ended child starts again. Pure: it is told how long the child lived."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    worked_after_s: float = 20.0  # restarts so far apart cost little
    stable_after_s: float = 60.0  # longer than a Spark driver takes to find a mistake of the caller's
    _failures: int = 0
    _was_stable: bool = False

    def ended(self, exit_code: int, life_s: float) -> float | None:
        """Seconds until the next start; None when there must be none, because the caller has to act first."""
        if life_s >= self.stable_after_s:
            self._was_stable = True
        if exit_code == STORES_REFUSED or (exit_code == CALLERS_MISTAKE and not self._was_stable):
            return None
        return self.delay_after(life_s)

    def delay_after(self, life_s: float) -> float:
        """Seconds until the next start of what can be started again."""
        if life_s >= self.worked_after_s:
            self._failures = 0
        delay_s = min(math.ldexp(self.first_delay_s, self._failures), self.max_delay_s)
        self._failures = min(self._failures + 1, 30)  # far beyond the maximum already, and no overflow
        return delay_s


@dataclass(slots=True, eq=False)
class Supervised:
    """A child and its current process, if any; `restart_at` counts only while there is none."""

    child: Child
    policy: RestartPolicy
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    stopping_since: float = 0.0
    last_line: str = ""
    ended_with: str = ""
    """The last words of the process before this one, if any."""
    pipe: ReadyPipe | None = None
    """Of one that is waited for, until it is ready."""
    takes_over: bool = False
    """It takes the place of another process, until it is ready."""
    is_leaving: bool = False
    """Its end is wanted, and the end of it."""

    @property
    def is_ready(self) -> bool:
        """Whether it does its work, as far as anybody wanted to know."""
        if self.pipe is not None and self.pipe.is_said():
            self.forget_pipe()
            self.takes_over = False
        return self.process is not None and self.pipe is None

    def forget_pipe(self) -> None:
        """Wait for it no more."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
