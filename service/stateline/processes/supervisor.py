"""Keeps child processes running: starts them, forwards what they say, restarts them, stops them in order.

Rules:

- An ended child restarts after 0.5 s, doubling to 30 s, and again from 0.5 s after a life of 20 s.
- If a child ends with exit code 2 (the caller's mistake) before it ever lived for 60 s, everything stops: no restart
  can help. If the child `fails_alone`, or new code is expected, only this child stays down. The same holds for exit
  code 3, after any life.
- Each child is a process group of its own, so that Ctrl-C in a terminal reaches only the supervisor. It stops the
  children by `stop_order`. SIGTERM goes to the child, SIGKILL to its whole group with the JVM of a Spark driver.
- No child outlives its supervisor: `stateline.processes.guard` ends them when it is killed.
- Children are started with exec, never by a bare fork: the threads of an open RocksDB do not survive a fork.

Not thread-safe: one thread owns a Supervisor.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

from stateline.processes import guard as supervisor_guard
from stateline.processes.child import HAND_OVER, STORES_REFUSED, Child, ReadyPipe, RestartPolicy, Supervised
from stateline.processes.logging import last_words
from stateline.processes.terminal import Terminal, heed_hangups
from stateline_store.errors import ConfigurationError

STOP_TIMEOUT_S = 30.0  # as for a Kubernetes pod
_POLL_S = 0.05  # between looks at the children
SAYS = "stateline"  # the name in front of the supervisor's own lines

Emit = Callable[[str, str], None]


class Renewing(Protocol):
    """Brings new code to running children: `stateline.processes.renewal`."""

    def begin(self, why: str) -> None:
        """Start, or start again after the current renewal."""

    def advance(self) -> None:
        """Continue without waiting. Raises nothing of the code's."""

    def close(self) -> None:
        """Abandon it."""


class StandingIn(Protocol):
    """Answers at the listeners while no child does: `stateline.server.stand_in`."""

    def answer(self, *, is_needed: bool) -> None:
        """Answer from now on, or leave it to the children. Returns at once."""

    def close(self) -> None:
        """End it."""


def write_line(name: str, line: str) -> None:
    """Write ``name | line`` to standard output in one write."""
    sys.stdout.write(f"{name:<10} | {line}\n")
    sys.stdout.flush()


class Supervisor:
    """Runs these children until `stop`. Use it as a context manager, or always call `stop`.

    `emit` gets (name, line) for each line of a child and of the supervisor, from several threads, one call at a time.
    Children inherit the sockets `listeners`. `stop` closes them first, else connections would wait for nobody.
    `stand_in` answers there while no child that `answers` is ready. With `takes_over`, the first children replace
    running processes. With `hands_over`, HAND_OVER ends the supervisor, and the children get it too.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        emit: Emit = write_line,
        policy: Callable[[], RestartPolicy] = RestartPolicy,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        listeners: Sequence[socket.socket] = (),
        stand_in: StandingIn | None = None,
        takes_over: bool = False,
        hands_over: bool = False,
    ) -> None:
        self._policy = policy
        self._all = [Supervised(child, policy()) for child in children]
        self._listeners = listeners
        self.stand_in = stand_in
        self._takes_over = takes_over
        self._hands_over = hands_over
        self._stop_signal = signal.SIGTERM
        self._hangups = 0
        self._write = emit
        self._writing = threading.Lock()  # guards _write: each child's reader thread calls it
        self._stop_timeout_s = stop_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._interrupts = 0
        self._outlives_mistakes = False
        self._is_quitting = False  # because of a mistake: the application is not restarted unchanged

    def __enter__(self) -> Supervisor:
        try:
            self.start()
        except BaseException:  # if a command cannot start, no other child stays
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def processes(self) -> dict[str, int]:
        """Name → process id of each running child."""
        return {one.child.name: one.process.pid for one in self._all if one.process is not None}

    def start(self) -> None:
        """Start every child that does not run."""
        self._start_guard()
        for one in self._all:
            if one.process is None:
                one.takes_over = self._takes_over
                self._start(one)
        self._let_stand_in()

    @property
    def is_ready(self) -> bool:
        """Whether every awaited child is ready."""
        return all(one.is_ready for one in self._all)

    @property
    def is_answered(self) -> bool:
        """Whether a child accepts connections at the listeners."""
        return any(one.is_ready for one in self._all if one.child.answers and not one.is_leaving)

    def of(self, name: str) -> Supervised | None:
        """The child of this name. If there are two, the one that stays."""
        return next((one for one in self._all if one.child.name == name and not one.is_leaving), None)

    @property
    def names(self) -> list[str]:
        """Names of the children that stay, in order."""
        return [one.child.name for one in self._all if not one.is_leaving]

    @contextmanager
    def guarded(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """During the block, the guard ends this process too if the supervisor is killed."""
        self._tell_guard("+", process.pid)
        try:
            yield
        finally:
            self._tell_guard("-", process.pid)

    def outlive_mistakes(self) -> None:
        """From now on the caller's mistakes end only the child that finds them, because new code will restart it."""
        self._outlives_mistakes = True

    def add(self, child: Child) -> Supervised:
        """Start one more child, and wait for it if it says when it is ready."""
        one = Supervised(child, self._policy(), takes_over=child.says_ready)
        self._all.append(one)
        self._start(one)
        return one

    def let_go(self, one: Supervised) -> None:
        """Ask this child to end, and forget it when it has ended: `has`."""
        one.is_leaving = True
        if one.process is None:
            self._forget(one)
        else:
            self._terminate(one, one.child.leaves_by)

    def has(self, one: Supervised) -> bool:
        """Whether it is still a child. Kills one that was let go and takes too long."""
        if one in self._all and one.is_leaving and time.monotonic() > one.stopping_since + self._stops_within_s([one]):
            self._kill(one)
            self._forget(one)
        return one in self._all

    def _stops_within_s(self, group: Sequence[Supervised]) -> float:
        return max([self._stop_timeout_s, *(one.child.stop_timeout_s for one in group)])

    def _forget(self, one: Supervised) -> None:
        one.forget_pipe()
        self._all.remove(one)

    def say(self, line: str) -> None:
        """Write a line of the supervisor's own."""
        self._emit(SAYS, line)

    def poll(self) -> None:
        """Notice ended children, and start those that are due. Returns at once.

        Raises `ConfigurationError` if a child found a mistake of the caller's. The others still run then: call `stop`.
        """
        if self._guard is not None and self._guard.poll() is not None:
            self._start_guard()
        for one in list(self._all):
            if one.process is None:
                if time.monotonic() >= one.restart_at:
                    self._start(one)
            elif one.process.poll() is not None and one.is_leaving:
                self._forget(one)
                self._emit(SAYS, f"{one.child.name} stopped ({_ending(self._reap(one))}).")
            elif one.process.poll() is not None:
                self._schedule_restart(one)
        self._let_stand_in()

    def _let_stand_in(self) -> None:
        if self.stand_in is not None:
            self.stand_in.answer(is_needed=not self.is_answered)

    def run(self, renewal: Renewing | None = None, terminal: Terminal | None = None) -> None:
        """Call `start`, then `poll` until SIGINT, SIGTERM or SIGHUP, then `stop`. For the main thread.

        With a `renewal`, SIGHUP starts it, unless SIGHUP comes because the `terminal` is gone. Raises
        `ConfigurationError` like `poll`, after everything was stopped.
        """
        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *([HAND_OVER] if self._hands_over else [])]
        before = {number: signal.signal(number, self._interrupted) for number in wanted}
        terminal = terminal or Terminal()
        heed_hangups()
        try:
            with self:
                while not self._interrupts:
                    try:
                        self.poll()
                    except ConfigurationError:
                        self._is_quitting = True
                        raise
                    self._heed_hangups(renewal, terminal)
                    if renewal is not None:
                        renewal.advance()
                    time.sleep(_POLL_S)
        finally:
            terminal.close()
            if renewal is not None:
                renewal.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed_hangups(self, renewal: Renewing | None, terminal: Terminal) -> None:
        hangups, self._hangups = self._hangups, 0
        if hangups and (renewal is None or terminal.is_gone()):
            self._interrupts += 1
        elif hangups and renewal is not None:
            renewal.begin("SIGHUP")

    def stop(self) -> None:
        """End every child: SIGTERM by `stop_order`, SIGKILL at the deadline. Returns when all have ended.

        Each order gets half of the remaining time before the next one starts; slower children still have until the
        deadline. The last order has at least the `stop_timeout_s` of its children. A second signal during `run` kills
        at once.
        """
        if self.stand_in is not None:
            self.stand_in.close()
        for listener in self._listeners:
            listener.close()
        deadline = time.monotonic() + self._stop_timeout_s
        orders = sorted({one.child.stop_order for one in self._all})
        for order in orders:
            group = [one for one in self._all if one.child.stop_order == order]
            for one in group:
                if not one.is_leaving:
                    self._terminate(one, one.child.quits_by if self._is_quitting else self._stop_signal)
            now = time.monotonic()
            if order == orders[-1]:
                longest_s = max(one.child.stop_timeout_s for one in group)
                self._await_end(group, max(deadline, now + longest_s))
            else:
                self._await_end(group, now + (deadline - now) / 2)
        self._await_end(self._all, deadline)
        for one in self._all:
            if one.process is not None:
                self._kill(one)
            one.forget_pipe()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()  # it has no child left, so it ends
            self._guard.wait()
            self._guard = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            self._hangups += 1
            return
        if number == HAND_OVER:
            self._stop_signal = HAND_OVER
        self._interrupts += 1

    def _start(self, one: Supervised) -> None:
        one.forget_pipe()
        one.pipe = pipe = ReadyPipe() if one.takes_over or one.child.answers else None
        try:
            one.process = subprocess.Popen(
                one.child.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **one.child.environment,
                    **(pipe.environment(takes_over=one.takes_over) if pipe else {}),
                    "PYTHONUNBUFFERED": "1",
                },
                start_new_session=True,
                pass_fds=[*one.child.pass_fds, *([pipe.write_end] if pipe else [])],
            )
        finally:
            if pipe is not None:
                pipe.started()
        self._tell_guard("+", one.process.pid)
        one.started_at = time.monotonic()
        one.last_line = ""
        one.reader = threading.Thread(target=self._forward, args=(one, one.process), daemon=True)
        one.reader.start()

    def _forward(self, one: Supervised, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for data in lines:
                line = data.decode(errors="replace").rstrip()
                one.last_line = line or one.last_line
                self._emit(one.child.name, line)

    def _schedule_restart(self, one: Supervised) -> None:
        life_s = time.monotonic() - one.started_at
        code = self._reap(one)
        one.ended_with = last_words(one.last_line)
        delay_s = one.policy.ended(code, life_s)
        if delay_s is None:
            one.restart_at = math.inf
            why = f"{one.child.name} cannot run: {one.ended_with}"
            others_work = any(other.restart_at != math.inf for other in self._all)
            ends_alone = one.child.fails_alone or code == STORES_REFUSED
            if not (self._outlives_mistakes or (ends_alone and others_work)):
                raise ConfigurationError(why)
            self._emit(SAYS, why)
            return
        one.restart_at = time.monotonic() + delay_s
        self._emit(SAYS, f"{one.child.name} ended ({_ending(code)}); it starts again in {delay_s:g} s.")

    def _reap(self, one: Supervised) -> int:
        """The exit code of an ended process, after its process group was killed and its output forwarded."""
        process, one.process = one.process, None
        assert process is not None
        code = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # for example the JVM of a killed driver
        self._tell_guard("-", process.pid)
        if one.reader is not None:
            one.reader.join(timeout=2.0)  # a process outside the group may still hold the pipe open
        return code

    def _terminate(self, one: Supervised, number: signal.Signals) -> None:
        if one.process is not None:
            one.process.send_signal(number)
            one.stopping_since = time.monotonic()

    def _await_end(self, group: Sequence[Supervised], until: float) -> None:
        running = [one for one in group if one.process is not None]
        while running and time.monotonic() < until and self._interrupts < 2:
            for one in [one for one in running if one.process is None or one.process.poll() is not None]:
                running.remove(one)
                self._emit(SAYS, f"{one.child.name} stopped ({_ending(self._reap(one))}).")
            time.sleep(_POLL_S / 5)

    def _kill(self, one: Supervised) -> None:
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
        # By path and isolated: it starts fast, and its imports cannot fail.
        script = [sys.executable, "-I", "-S", supervisor_guard.__file__, str(self._stops_within_s(self._all))]
        running = [str(pid) for pid in self.processes.values()]
        self._guard = subprocess.Popen([*script, *running], stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def _tell_guard(self, sign: str, pid: int) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            # If the guard was killed, `poll` starts another one with all children.
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{sign}{pid}\n".encode())


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
