"""The driver as a process: its signals, the start of its session, and its locks.

Only as many drivers of a state directory start Spark at once as there are processors. The first ones then run while the
others wait. A starting driver locks one of ``<application.id>/.pipeline-starts-<n>``. Linux releases it if the driver
dies.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from stateline.config.settings import Config
from stateline.deployment.pipelines.status import lock_path
from stateline.spark.session import close_session, require_classic, spark_session
from stateline_store import LockedError
from stateline_store.files.directory import TaskLock

LOOK_INTERVAL_S = 0.1  # how soon a stop or a failure is noticed
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_JVM_LOCK_TIMEOUT_S = 60.0  # a killed driver's JVM ends its micro-batch first
_LOCK_ATTEMPTS = 5  # a server that checks the pipeline holds the lock for microseconds

_LOOK_S = 0.1
_PATIENCE_S = 60.0  # longer than a start: a hanging driver must not block the others


class Stopping(threading.Event):
    """Set when a driver must stop in order. `by_signal`: its process must end too."""

    by_signal = False

    def tell(self) -> None:
        """Set it, from a signal handler."""
        self.by_signal = True
        self.set()


def pipeline_lock(directory: Path) -> TaskLock:
    """Take the driver's lock of a pipeline's directory. Raises `LockedError` while another driver has it."""
    for _ in range(_LOCK_ATTEMPTS - 1):
        try:
            return TaskLock(lock_path(directory))
        except LockedError:
            time.sleep(0.02)
    return TaskLock(lock_path(directory))


@contextmanager
def driver_session(
    config: Config, stopping: Stopping, session: SparkSession | None = None
) -> Iterator[SparkSession | None]:
    """Yield the caller's session, or one that lasts as long as the block. None if `stopping` was set first. Raises the
    errors of `spark_session`, and `ConfigurationError` for a session of Spark Connect."""
    if session is not None:
        require_classic(session)
        yield None if stopping.is_set() else session
        return
    started: SparkSession | None = None
    with _interruptible(stopping):
        started = spark_session(config)
    if started is None:
        yield None
        return
    handle_signals(stopping)  # a starting SparkContext took SIGINT for itself
    try:
        yield None if stopping.is_set() else started
    finally:
        close_session(started)


@contextmanager
def stop_on_signals() -> Iterator[Stopping]:
    """Yield an event that SIGTERM and SIGINT set while the block runs. Signals are handled on the main thread only."""
    stopping = Stopping()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handle_signals(stopping)
    try:
        yield stopping
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def handle_signals(stopping: Stopping) -> None:
    """Let SIGTERM and SIGINT set the event from now on. Does nothing off the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.tell()

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, stop)


class _StoppedEarly(BaseException):
    """Raised by a signal while Spark starts. Not an `Exception`, so that nobody handles it as a failure."""


@contextmanager
def _interruptible(stopping: Stopping) -> Iterator[None]:
    """Let a signal end the block, which only starts Spark, at once. A start takes 3 to 15 s and writes nothing. The JVM
    is killed: interrupted in its start it would never end."""
    armed, others = threading.current_thread() is threading.main_thread(), descendants()

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        stopping.tell()
        if armed:
            armed = False
            raise _StoppedEarly

    try:
        if armed:
            for number in _SIGNALS:
                signal.signal(number, stop)
        try:
            yield
        finally:
            armed = False
    except (_StoppedEarly, KeyboardInterrupt):  # Spark's own handler of SIGINT raises the latter
        stopping.tell()
        kill_jvm(spare=others)


def kill_jvm(spare: Collection[int] = ()) -> None:
    """Kill the JVM that this process has started, or is starting. PySpark publishes its process only once the JVM has
    answered. Until then the process is found among live objects. If it is not there, Linux names the descendants: all
    but `spare` are killed."""
    started = kill_descendants(spare)
    for found in gc.get_objects():
        if not isinstance(found, subprocess.Popen) or "spark-submit" not in str(found.args):
            continue
        # Interrupted while it starts, it has no pid, and waiting would fail.
        if found.pid is not None and found.poll() is None:
            found.kill()
            found.wait()
    for pid in started:
        with suppress(ChildProcessError):  # not this one's own child, or waited for already
            os.waitpid(pid, 0)


def kill_descendants(spare: Collection[int] = ()) -> set[int]:
    """Kill all descendants of this process but `spare`, and return them. A signal handler may call it: it only asks
    Linux, and does not wait."""
    started: set[int] = set()
    while new := set(descendants()).difference(started, spare):
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # spark-submit is a script: it would start another process meanwhile
        started |= new
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return started


def descendants() -> list[int]:
    """Return the descendants of this process, none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # grows meanwhile
        found += children.get(pid, ())
    return found


@contextmanager
def jvm_lock(session: SparkSession, path: Path) -> Iterator[None]:
    """Hold the JVM's own lock while the block runs, or until the JVM that writes the checkpoint ends. Raises
    `LockedError` if a killed driver's JVM still holds it after `_JVM_LOCK_TIMEOUT_S`."""
    path.touch()
    jvm = session.sparkContext._jvm
    assert jvm is not None  # a session that runs has one
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    try:
        deadline = time.monotonic() + _JVM_LOCK_TIMEOUT_S
        while channel.tryLock() is None:
            if time.monotonic() > deadline:
                raise LockedError(f"{path} is held by the JVM of an earlier driver: wait until it has ended.")
            time.sleep(LOOK_INTERVAL_S)
        yield
    finally:
        channel.close()


@contextmanager
def in_turn(application: Path, stopping: threading.Event, of: int | None = None) -> Iterator[Callable[[], None]]:
    """Wait until fewer than `of` drivers start (default: the processors), or `stopping` is set. Yield a function to
    call when this driver has started. The end of the block calls it too."""
    turn = _turn(application, stopping, of or os.cpu_count() or 1)
    letting_go = threading.Lock()  # several pipelines of a driver may have started at once

    def has_started() -> None:
        if turn is not None:
            with letting_go:
                turn.release()  # a second time does nothing

    try:
        yield has_started
    finally:
        has_started()


def _turn(application: Path, stopping: threading.Event, processors: int) -> TaskLock | None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        for number in range(processors):
            try:
                return TaskLock(application / f".pipeline-starts-{number}")
            except LockedError:
                continue
        if time.monotonic() >= deadline_s or stopping.wait(_LOOK_S):
            return None
