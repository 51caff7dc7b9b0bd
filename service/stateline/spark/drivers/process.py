"""What a driver is as a process: its signals, its session's start, and the lock that its JVM holds."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from stateline.config.settings import Config
from stateline.deployment.pipelines.status import lock_path
from stateline.spark.classic import require_classic
from stateline.spark.session import close_session, spark_session
from stateline_store import LockedError
from stateline_store.files.directory import TaskLock

LOOK_INTERVAL_S = 0.1  # how soon a stop or a failure is noticed
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_JVM_LOCK_TIMEOUT_S = 60.0  # a killed driver's JVM ends its micro-batch first
_LOCK_ATTEMPTS = 5  # a server that looks whether the pipeline runs has the lock for microseconds


class Stopping(threading.Event):
    """Set when a driver is to stop, in order. `by_signal`: its process is to end, too."""

    by_signal = False

    def tell(self) -> None:
        """For handlers of signals."""
        self.by_signal = True
        self.set()


def pipeline_lock(directory: Path) -> TaskLock:
    """The driver's own lock of a pipeline's directory. Raises `LockedError` while another driver has it."""
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
    """The caller's session, or one that is started here and ended with the block; None when `stopping` was set first.

    Raises as `spark_session` does, and `ConfigurationError` for a session of Spark Connect.
    """
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
    """Set by SIGTERM and SIGINT while the block runs; never set off the main thread."""
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
    """Let SIGTERM and SIGINT set it from now on; does nothing off the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.tell()

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, stop)


class _StoppedEarly(BaseException):
    """Raised by a signal while Spark starts. No `Exception`, so that nobody on the way takes it for a failure."""


@contextmanager
def _interruptible(stopping: Stopping) -> Iterator[None]:
    """Let a signal end the block, which only starts Spark, at once: that takes 3 to 15 s, and nothing is written yet.

    Its JVM is killed: left in the middle of its start it would never end.
    """
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
    """Kill the JVM that this process has started, or is starting.

    PySpark tells of its process only once the JVM has answered; the frames that were left still refer to it. If they do
    not, because it was just being started, Linux knows what this process has started: all but `spare` are killed.
    """
    started = kill_descendants(spare)
    for found in gc.get_objects():
        if not isinstance(found, subprocess.Popen) or "spark-submit" not in str(found.args):
            continue
        # Left between its start and Python's note of that it has no number, and waiting for it fails.
        if found.pid is not None and found.poll() is None:
            found.kill()
            found.wait()
    for pid in started:
        with suppress(ChildProcessError):  # not this one's own child, or waited for already
            os.waitpid(pid, 0)


def kill_descendants(spare: Collection[int] = ()) -> set[int]:
    """Kill all that this process has started, and what these have, but `spare`; which these were. For handlers of
    signals, too: it asks Linux alone, and waits for nothing."""
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
    """Processes that this one has started, and those that they have; none where the system does not tell."""
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
    """The JVM's own lock, for as long as the JVM that writes the checkpoint lives.

    Raises `LockedError` when a killed driver's JVM still holds it after `_JVM_LOCK_TIMEOUT_S`.
    """
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
