"""A process that a supervisor keeps running (`Child`), when it restarts, and how it tells that it is ready.

An awaited process has a pipe to its supervisor. The pipe also tells if the process ended before it was ready.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CALLERS_MISTAKE = 2  # exit code of errors that no restart cures
STORES_REFUSED = 3  # exit code: no worker may run the stores; servers answer their last committed state

# The signal to a process whose successor is ready: accept nothing more, complete requests, end.
HAND_OVER = signal.SIGUSR1

# The signal to a worker that stops and leaves its group for good, so that others get its tasks at once.
LEAVE = signal.SIGUSR2

# No setting has these names.
_VARIABLE = "SUPERVISOR_READY_FD"
_TAKES_OVER = "SUPERVISOR_TAKES_OVER"


class ReadyPipe:
    """The supervisor's end. One thread owns it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()

    def environment(self, *, takes_over: bool) -> dict[str, str]:
        """Variables for the process. It has to inherit `write_end` under the same number."""
        return {_VARIABLE: str(self.write_end), _TAKES_OVER: str(int(takes_over))}

    def started(self) -> None:
        """Close the supervisor's copy of the process's end, which would keep the pipe open."""
        os.close(self.write_end)

    def is_said(self) -> bool:
        """Whether the process is ready. Stays False if it ended before."""
        readable, _, _ = select.select([self._read_end], [], [], 0)
        return bool(readable) and os.read(self._read_end, 1) != b""

    def close(self) -> None:
        os.close(self._read_end)


class ReadySignal:
    """The process's end. Make it once, before the process starts others, which must not inherit the pipe."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)
        self.takes_over = os.environ.pop(_TAKES_OVER, "0") == "1"
        """Whether a process that this one replaces still runs, or has just ended."""

    @property
    def is_awaited(self) -> bool:
        """Whether a supervisor waits for readiness."""
        return self._descriptor is not None

    def say(self) -> None:
        """Report readiness, once. Does nothing if nobody waits."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.write(descriptor, b"1")
            except BrokenPipeError:  # the supervisor waits no more
                pass
            finally:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running. Children of a lower `stop_order` are stopped, and have ended, before others."""

    name: str
    command: Sequence[str]
    stop_order: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    pass_fds: Sequence[int] = ()
    """Open files of the supervisor that the child inherits, under the same numbers."""
    fails_alone: bool = False
    """Its mistakes end only this child, as long as there are others."""
    says_ready: bool = False
    """It reports its readiness (`ReadySignal`), if the supervisor waits for it."""
    answers: bool = False
    """Once ready, it accepts connections at the supervisor's listeners."""
    takes_over: bool = False
    """With new code it starts beside the old process, which ends when this one is ready."""
    leaves_by: signal.Signals = signal.SIGTERM
    """The signal that ends it when another process replaces it."""
    quits_by: signal.Signals = signal.SIGTERM
    """The signal that ends it when the application cannot run here."""
    stop_timeout_s: float = 0.0
    """How long it may take to stop before it is killed, if longer than the supervisor's timeout."""


@dataclass(slots=True)
class RestartPolicy:
    """Decides when an ended child restarts. Pure: the caller passes how long the child lived."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    worked_after_s: float = 20.0  # restarts at this distance are cheap
    stable_after_s: float = 60.0  # longer than a Spark driver needs to find a mistake of the caller's
    _failures: int = 0
    _was_stable: bool = False

    def ended(self, exit_code: int, life_s: float) -> float | None:
        """Seconds until the next start; None if it must not restart, because the caller has to act first."""
        if life_s >= self.stable_after_s:
            self._was_stable = True
        if exit_code == STORES_REFUSED or (exit_code == CALLERS_MISTAKE and not self._was_stable):
            return None
        return self.delay_after(life_s)

    def delay_after(self, life_s: float) -> float:
        """Seconds until the next start, for any exit code."""
        if life_s >= self.worked_after_s:
            self._failures = 0
        delay_s = min(math.ldexp(self.first_delay_s, self._failures), self.max_delay_s)
        self._failures = min(self._failures + 1, 30)  # no overflow; the delay has reached its maximum long before
        return delay_s


@dataclass(slots=True, eq=False)
class Supervised:
    """A child with its current process, if any. `restart_at` counts only without one."""

    child: Child
    policy: RestartPolicy
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    stopping_since: float = 0.0
    last_line: str = ""
    ended_with: str = ""
    """The last line of the process before this one, if any."""
    pipe: ReadyPipe | None = None
    """Open until the process is ready, if the supervisor waits for that."""
    takes_over: bool = False
    """It replaces another process, until it is ready."""
    is_leaving: bool = False
    """Its process is to end, and it is then forgotten."""

    @property
    def is_ready(self) -> bool:
        """Whether it is ready, or nobody waits for that."""
        if self.pipe is not None and self.pipe.is_said():
            self.forget_pipe()
            self.takes_over = False
        return self.process is not None and self.pipe is None

    def forget_pipe(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
