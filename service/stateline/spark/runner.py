"""Run one pipeline: from its topics through the user's function into its result topic, until told to stop.

Files, all below ``<state.dir>/<application.id>/pipelines/<name>/``: ``checkpoint`` is Spark's; ``.lock``
belongs to the driver process, ``.spark-lock`` to its JVM, which can outlive a killed driver by a moment and
is the one that writes the checkpoint; ``status.json`` says how far the pipeline is (see `stateline.spark.status`).
"""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stateline.app import App
from stateline.config import Config
from stateline.log import Log
from stateline.spark.frames import TopicFrames, topic_frames
from stateline.spark.session import close_session, spark_session
from stateline.spark.sink import EpochSink
from stateline.spark.status import Progress, StatusListener, log_progress
from stateline.topics import ensure_topics
from stateline.topology import Pipeline
from stateline_store import DoesNotExistError, LockedError, StatelineError, TopologyError
from stateline_store.directory import StateDirectory, TaskLock, make_directory

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_INTERVAL_S = 0.1  # how soon a stop or a failure is noticed
_EVENTS_TIMEOUT_S = 10.0
_JVM_LOCK_TIMEOUT_S = 60.0  # a killed driver's JVM ends its micro-batch first
_MAX_ROWS_PER_BATCH = 200_000  # some 100 MB of result rows in the driver at most, and a second or two of work


def run_pipeline(
    app: App,
    name: str,
    config: Config,
    log: Log,
    *,
    available_now: bool = False,
    progress: Progress | None = None,
    session: SparkSession | None = None,
    max_rows_per_batch: int = _MAX_ROWS_PER_BATCH,
) -> None:
    """Run the pipeline until SIGTERM or SIGINT; with `available_now`, until it has read what is there now.

    `progress` is called after each micro-batch, on another thread; without it, progress is logged. With a
    `session` of the caller's that one is used and left running. Signals are handled only on the main
    thread.

    Raises `DoesNotExistError` for an unknown pipeline, `LockedError` while another driver runs it,
    `TopologyError` for a pipeline that cannot run or a source topic that does not exist, what the sink
    raised, or `StatelineError` with the query's root cause. The result topic then holds whole micro-batches,
    and the next run goes on behind the last one.
    """
    pipeline = _pipeline(app, name)
    directory = StateDirectory(config.state_dir.resolve(), config.application_id).application / "pipelines" / name
    make_directory(directory)
    lock = TaskLock(directory / ".lock")
    try:
        with _stop_on_signals() as stopping:
            with closing(log.admin()) as admin:
                ensure_topics(app.topology(), admin)
            own = session is None
            with _interruptible(stopping):
                session = session or spark_session(config)
            if session is None:
                return  # told to stop before Spark was up
            _handle_signals(stopping)  # a starting SparkContext took SIGINT for itself
            try:
                if stopping.is_set():
                    return
                frames = topic_frames(session, config, log, max_rows_per_batch=max_rows_per_batch)
                with _jvm_lock(session, directory / ".spark-lock"):
                    run = _Run(pipeline, config, log, directory, frames)
                    run.until(stopping, available_now, progress or log_progress)
            finally:
                if own:
                    close_session(session)
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a pipeline by this process."""

    pipeline: Pipeline
    config: Config
    log: Log
    directory: Path
    frames: TopicFrames

    def until(self, stopping: threading.Event, available_now: bool, progress: Progress) -> None:
        result = _result_frame(self.pipeline, self.frames)
        sink = EpochSink(self.log, self.config.application_id, self.pipeline, self.directory / "checkpoint")
        listener = StatusListener(self.pipeline.name, self.directory / "status.json", progress)
        streams = self.frames.session.streams
        listener.path.unlink(missing_ok=True)  # of a driver that was killed
        streams.addListener(listener)
        try:
            sink.open(result.columns)
            query = self._start(result, sink, available_now)
            _wait(query, stopping)
            listener.wait_until_ended(_EVENTS_TIMEOUT_S)  # else the last progress goes unreported
            _raise_failure(self.pipeline.name, query, sink, stopping)
        finally:
            sink.close()
            streams.removeListener(listener)
            listener.path.unlink(missing_ok=True)

    def _start(self, result: DataFrame, sink: EpochSink, available_now: bool) -> StreamingQuery:
        writer = (
            result.writeStream.queryName(self.pipeline.name)
            .outputMode(self.pipeline.output_mode)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .foreachBatch(sink)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.config.spark_trigger_interval_ms} milliseconds")
        try:
            return writer.start()
        except AnalysisException as error:
            raise TopologyError(f"Pipeline {self.pipeline.name!r} cannot run: {_first_line(str(error))}") from error


def _pipeline(app: App, name: str) -> Pipeline:
    pipelines = app.topology().pipelines
    if name not in pipelines:
        known = ", ".join(pipelines) or "none"
        raise DoesNotExistError(f"{app.application_id} has no pipeline {name!r}; it has {known}.")
    return pipelines[name]


def _result_frame(pipeline: Pipeline, frames: TopicFrames) -> DataFrame:
    streams = [frames.stream(topic) for topic in pipeline.reads]
    statics = [frames.static(topic) for topic in pipeline.static]
    try:
        result = pipeline.function(*streams, *statics)
    except AnalysisException as error:
        raise TopologyError(f"Pipeline {pipeline.name!r} cannot run: {_first_line(str(error))}") from error
    if not isinstance(result, DataFrame) or not result.isStreaming:
        raise TopologyError(
            f"Pipeline {pipeline.name!r} returned {type(result).__name__}, not a streaming DataFrame: return what it "
            "makes of its first arguments."
        )
    return result


def _wait(query: StreamingQuery, stopping: threading.Event) -> None:
    """Until the query ends by itself, or is told to; a micro-batch that its sink writes is finished then."""
    while query.isActive and not stopping.wait(_LOOK_INTERVAL_S):
        pass
    if query.isActive:
        query.stop()


def _raise_failure(name: str, query: StreamingQuery, sink: EpochSink, stopping: threading.Event) -> None:
    if stopping.is_set():
        return  # whatever the abandoned micro-batch said, the next run computes it again
    if isinstance(sink.failure, StatelineError):
        raise sink.failure
    failure = query.exception()
    if failure is not None:
        raise StatelineError(f"Pipeline {name!r} failed: {_root_cause(query, failure)}") from sink.failure


def _root_cause(query: StreamingQuery, failure: StreamingQueryException) -> str:
    """The deepest cause in one line; of a Python traceback the last line."""
    cause = query._jsq.exception().get()
    while cause.getCause() is not None:
        cause = cause.getCause()
    message = str(cause.getMessage() or failure)
    if "Traceback (most recent call last)" in message:
        lines = [line for line in message.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning)?: ", line)]
        return lines[-1] if lines else _first_line(message)
    return f"{cause.getClass().getSimpleName()}: {_first_line(message)}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), text)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT while the block runs; never set off the main thread."""
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    _handle_signals(stopping)
    try:
        yield stopping
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _handle_signals(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, stop)


class _StoppedEarly(BaseException):
    """Raised by a signal while Spark starts. No `Exception`, so that nobody on the way takes it for a failure."""


@contextmanager
def _interruptible(stopping: threading.Event) -> Iterator[None]:
    """Let a signal end the block, which only starts Spark, at once: that takes 3 to 15 s, and nothing is written yet.

    Its JVM is killed: left in the middle of its start it would never end.
    """
    armed = threading.current_thread() is threading.main_thread()

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        stopping.set()
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
        stopping.set()
        _kill_starting_jvm()


def _kill_starting_jvm() -> None:
    """PySpark tells of its process only once the JVM has answered; the frames that were left still refer to it."""
    for found in gc.get_objects():
        if isinstance(found, subprocess.Popen) and "spark-submit" in str(found.args) and found.poll() is None:
            found.kill()
            found.wait()


@contextmanager
def _jvm_lock(session: SparkSession, path: Path) -> Iterator[None]:
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
            time.sleep(_LOOK_INTERVAL_S)
        yield
    finally:
        channel.close()
