"""Keeps child processes running: starts them, forwards what they say, restarts them, stops them in order.

Rules:

- A child that ends is started again after 0.5 s, doubling to 30 s; from 0.5 s again once it lived for 20 s.
  One that ends with exit code 2 (the caller's mistake) before it ever lived for 60 s stops everything: no
  restart can help. One that `fails_alone` is not started again then, and the others go on.
- Each child is started as a process group of its own, so that Ctrl-C in a terminal reaches the supervisor
  alone, which then stops the children by `stop_order`. SIGTERM goes to the child; SIGKILL goes to its whole
  group, the JVM of a Spark driver included.
- No child outlives its supervisor: `stateline.processes.guard` ends them when it is killed.
- Children are started anew with exec, never forked off: the threads of an open RocksDB do not survive a fork.

Not thread-safe: one thread owns a Supervisor.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from stateline.processes import guard as supervisor_guard
from stateline.processes.logging import last_words
from stateline_store.errors import ConfigurationError

CALLERS_MISTAKE = 2  # the exit code of the command line for errors that a restart cannot cure
STOP_TIMEOUT_S = 30.0  # what a Kubernetes pod gets, too
_POLL_S = 0.05  # between two looks at the children
SAYS = "stateline"  # the name before the supervisor's own lines

Emit = Callable[[str, str], None]


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
        if exit_code == CALLERS_MISTAKE and not self._was_stable:
            return None
        return self.delay_after(life_s)

    def delay_after(self, life_s: float) -> float:
        """Seconds until the next start of what can be started again."""
        if life_s >= self.worked_after_s:
            self._failures = 0
        delay_s = min(math.ldexp(self.first_delay_s, self._failures), self.max_delay_s)
        self._failures = min(self._failures + 1, 30)  # far beyond the maximum already, and no overflow
        return delay_s


@dataclass(slots=True)
class _Supervised:
    """A child and its current process, if any; `restart_at` counts only while there is none."""

    child: Child
    policy: RestartPolicy
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    stopping_since: float = 0.0
    last_line: str = ""


def write_line(name: str, line: str) -> None:
    """The default for a child's lines: ``name | line`` on standard output, as one write."""
    sys.stdout.write(f"{name:<10} | {line}\n")
    sys.stdout.flush()


class Supervisor:
    """Runs these children until `stop`. Use it as a context manager, or call `stop` yourself, come what may.

    `emit` gets (name, line) for each line of the children's output and for the supervisor's own messages,
    from several threads, one call at a time.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        emit: Emit = write_line,
        policy: Callable[[], RestartPolicy] = RestartPolicy,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._all = [_Supervised(child, policy()) for child in children]
        self._write = emit
        self._writing = threading.Lock()  # guards _write: each child's reader thread calls it
        self._stop_timeout_s = stop_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._interrupts = 0

    def __enter__(self) -> Supervisor:
        try:
            self.start()
        except BaseException:  # a command that cannot be started leaves no others behind
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def processes(self) -> dict[str, int]:
        """Name and process id of every child that runs now."""
        return {one.child.name: one.process.pid for one in self._all if one.process is not None}

    def start(self) -> None:
        """Start every child that does not run."""
        self._start_guard()
        for one in self._all:
            if one.process is None:
                self._start(one)

    def poll(self) -> None:
        """Notice children that ended, and start those whose time has come. Returns at once.

        Raises `ConfigurationError` when a child found a mistake of the caller's. The others still run then:
        call `stop`.
        """
        if self._guard is not None and self._guard.poll() is not None:
            self._start_guard()
        for one in self._all:
            if one.process is None:
                if time.monotonic() >= one.restart_at:
                    self._start(one)
            elif one.process.poll() is not None:
                self._schedule_restart(one)

    def run(self) -> None:
        """`start`, then `poll` until SIGINT, SIGTERM or SIGHUP, then `stop`. Call it on the main thread.

        Raises `ConfigurationError` as `poll` does, after everything was stopped.
        """
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._interrupted) for number in wanted}
        try:
            with self:
                while not self._interrupts:
                    self.poll()
                    time.sleep(_POLL_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End every child: SIGTERM by `stop_order`, SIGKILL at the deadline. Returns when all are gone.

        An order waits for those before it for half of the time that remains; whoever is slower has until the deadline
        all the same. A second signal during `run` kills at once.
        """
        deadline = time.monotonic() + self._stop_timeout_s
        orders = sorted({one.child.stop_order for one in self._all})
        for order in orders:
            group = [one for one in self._all if one.child.stop_order == order]
            self._terminate(group)
            now = time.monotonic()
            self._await_end(group, deadline if order == orders[-1] else now + (deadline - now) / 2)
        self._await_end(self._all, deadline)
        for one in self._all:
            if one.process is not None:
                self._kill(one)
        self._stop_guard()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._interrupts += 1

    def _start(self, one: _Supervised) -> None:
        one.process = subprocess.Popen(
            one.child.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **one.child.environment, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            pass_fds=one.child.pass_fds,
        )
        self._tell_guard("+", one.process.pid)
        one.started_at = time.monotonic()
        one.last_line = ""
        one.reader = threading.Thread(target=self._forward, args=(one, one.process), daemon=True)
        one.reader.start()

    def _forward(self, one: _Supervised, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for data in lines:
                line = data.decode(errors="replace").rstrip()
                one.last_line = line or one.last_line
                self._emit(one.child.name, line)

    def _schedule_restart(self, one: _Supervised) -> None:
        life_s = time.monotonic() - one.started_at
        code = self._reap(one)
        delay_s = one.policy.ended(code, life_s)
        if delay_s is None:
            one.restart_at = math.inf
            why = f"{one.child.name} cannot run: {last_words(one.last_line)}"
            if not one.child.fails_alone or all(other.restart_at == math.inf for other in self._all):
                raise ConfigurationError(why)
            self._emit(SAYS, why)
            return
        one.restart_at = time.monotonic() + delay_s
        self._emit(SAYS, f"{one.child.name} ended ({_ending(code)}); it starts again in {delay_s:g} s.")

    def _reap(self, one: _Supervised) -> int:
        """The exit code of an ended process, once what it started was ended and its output forwarded."""
        process, one.process = one.process, None
        assert process is not None
        code = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # for example a JVM whose driver was killed
        self._tell_guard("-", process.pid)
        if one.reader is not None:
            one.reader.join(timeout=2.0)  # a process that left the group may still hold the pipe open
        return code

    def _terminate(self, group: Sequence[_Supervised]) -> None:
        for one in group:
            if one.process is not None:
                one.process.terminate()
                one.stopping_since = time.monotonic()

    def _await_end(self, group: Sequence[_Supervised], until: float) -> None:
        running = [one for one in group if one.process is not None]
        while running and time.monotonic() < until and self._interrupts < 2:
            for one in [one for one in running if one.process is None or one.process.poll() is not None]:
                running.remove(one)
                self._emit(SAYS, f"{one.child.name} stopped ({_ending(self._reap(one))}).")
            time.sleep(_POLL_S / 5)

    def _kill(self, one: _Supervised) -> None:
        since_s = round(time.monotonic() - one.stopping_since, 1)
        why = "interrupted twice" if self._interrupts >= 2 else f"still running {since_s:g} s after it was told to stop"
        self._emit(SAYS, f"{one.child.name} is killed: {why}.")
        assert one.process is not None
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        self._reap(one)

    def _emit(self, name: str, line: str) -> None:
        with self._writing:
            self._write(name, line)

    def _start_guard(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            return
        # By path and isolated, so that it starts fast and imports nothing that could fail.
        script = [sys.executable, "-I", "-S", supervisor_guard.__file__, str(self._stop_timeout_s)]
        running = [str(pid) for pid in self.processes.values()]
        self._guard = subprocess.Popen([*script, *running], stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def _tell_guard(self, sign: str, pid: int) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            # When the guard was killed, `poll` starts another one and tells it of all.
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{sign}{pid}\n".encode())

    def _stop_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()  # it knows of no child any more, so it just ends
            self._guard.wait()
            self._guard = None


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
