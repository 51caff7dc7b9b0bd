"""Several pipelines in one driver: one Spark session, and for each pipeline a query, a sink, locks and a status.

A failed pipeline restarts alone after 500 ms, doubling to ``pipeline.restart.max.ms``. After a run of 20 s the delay is
500 ms again. A `CallerError` (the application, a topic, a record) is not retried: the pipeline stays `failed` until the
driver restarts. If Spark ends or its cluster is lost, the driver ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from stateline.config.settings import Config
from stateline.deployment.pipelines.reports import PipelineReporter
from stateline.deployment.stores.discarding import settle_resets
from stateline.dsl.app import App
from stateline.log import Log
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.pipeline import Pipeline
from stateline.processes.child import RestartPolicy
from stateline.spark.connector import require_connector
from stateline.spark.drivers.class_archive import recording_class_archive
from stateline.spark.drivers.leases import begin_anew, leased
from stateline.spark.drivers.master_watch import watched_master
from stateline.spark.drivers.one_pipeline import (
    PipelineRun,
    message_of,
    pipeline_checkpoint,
    pipeline_directory,
    pipeline_of,
)
from stateline.spark.drivers.process import (
    LOOK_INTERVAL_S,
    Stopping,
    driver_session,
    in_turn,
    pipeline_lock,
    stop_on_signals,
)
from stateline.spark.drivers.status import Progress, StatusFile
from stateline.spark.drivers.topics import missing_topics, warn_of_tables
from stateline.spark.sources.frames import topic_frames
from stateline_store import (
    CallerError,
    ConfigurationError,
    RecordError,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    TopologyError,
)
from stateline_store.clock import now_ms
from stateline_store.files.directory import TaskLock, make_directory

_logger = logging.getLogger(__name__)


def run_pipelines(
    app: App,
    names: Sequence[str],
    config: Config,
    log: Log,
    *,
    available_now: bool = False,
    progress: Progress | None = None,
    session: SparkSession | None = None,
) -> None:
    """Run these pipelines side by side until SIGTERM or SIGINT. With `available_now`, until each has read the present
    records: nothing restarts then, and the first failure is raised at the end.

    `progress` is called after each micro-batch, on another thread. A caller's `session` is used and stays open. A
    driver with its own session records a class archive if there is none. Signals are handled on the main thread only.
    With `pipeline.checkpoint.location`, the driver waits for the pipelines' leases, and for a signal after a drain. A
    lost lease ends the process.

    Before it starts anything, raises `DoesNotExistError` for an unknown pipeline, `LockedError` while another driver
    runs one of them, and `ConfigurationError` if Spark's Kafka connector is missing. Later raises the caller's mistake
    once it has failed all pipelines, and `StatelineError` if Spark ended or its cluster is lost.
    """
    pipelines = [pipeline_of(app, name) for name in dict.fromkeys(names)]
    starts = threading.Semaphore(os.cpu_count() or 1)
    terms = _Terms(available_now, progress, own_sessions=len(pipelines) > 1, starts=starts)
    with stop_on_signals() as stopping:
        if config.pipelines_move:
            begin_anew(pipelines, config)
        while True:
            with leased(pipelines, config, log, stopping, available_now=available_now) as may_write:
                if not stopping.is_set():
                    ending = _Ending(stopping, alone=len(pipelines) == 1, may_write=may_write)
                    _run(app, pipelines, config, log, terms, ending, session)
            if stopping.by_signal or not stopping.is_set():
                return
            stopping.clear()  # drained


def _run(
    app: App,
    pipelines: Sequence[Pipeline],
    config: Config,
    log: Log,
    terms: _Terms,
    ending: _Ending,
    session: SparkSession | None,
) -> None:
    with ExitStack() as resources:
        reporter = None
        if log.embedded_file is None:  # nobody on another machine reads an embedded log
            directory = StateDirectory(config.state_dir, config.application_id).process_id()
            reporter = PipelineReporter(log, config.application_id, config.node, str(directory))
            resources.callback(reporter.close)
        driven = [resources.enter_context(closing(_Driven(p, config, log, ending, reporter))) for p in pipelines]
        if session is None:
            _require_connector(driven, config, log)
        settle_resets(config, log, app.target)  # after the locks, which show a reset that these run
        topology = app.topology()
        with closing(log.admin()) as admin:
            mistakes = missing_topics(topology, pipelines, admin, ConfiguredTopics.of(config))
        if able := [one for one in driven if not one.refuse(mistakes)]:
            application = config.state_dir / config.application_id
            has_started = resources.enter_context(in_turn(application, ending.stopping))
            terms = replace(terms, has_started=has_started)
            with driver_session(config, ending.stopping, session) as running:
                if running is not None:
                    if session is None:
                        resources.enter_context(recording_class_archive(config))
                    places = [(one.pipeline, pipeline_checkpoint(running, config, one.pipeline.name)) for one in able]
                    # If the log or a checkpoint is out of reach, each pipeline reports that at its start.
                    with suppress(RetryLaterError), closing(log.admin()) as admin:
                        warn_of_tables(topology, admin, places)
                    _drive(able, running, terms, ending)
        _judge(driven, ending)


@dataclass(slots=True)
class _Ending:
    """The reason why all pipelines of a driver end. Their threads share it."""

    stopping: Stopping
    """Set by a signal, and when Spark has ended."""
    alone: bool
    """There is one pipeline only. The driver ends with its error."""
    may_write: Callable[[], bool]
    """Whether no other node can run these pipelines now."""
    lost_spark: str | None = None
    """Why Spark is unusable."""

    def lose_spark(self, why: str) -> None:
        self.lost_spark = why
        self.stopping.set()


@dataclass(frozen=True, slots=True)
class _Terms:
    available_now: bool
    progress: Progress | None
    own_sessions: bool
    starts: threading.Semaphore
    """One per processor, so that the first pipelines run while the others wait to start."""
    has_started: Callable[[], None] = lambda: None
    """Called when a pipeline runs. Lets the next driver start Spark."""


@dataclass(slots=True)
class _Driven:
    """One pipeline of a driver. Its own thread calls `work`. The driver's thread calls the rest."""

    pipeline: Pipeline
    config: Config
    log: Log
    ending: _Ending
    reporter: PipelineReporter | None
    failure: Exception | None = None
    """The error that ended it."""
    _status: StatusFile = field(init=False)
    _lock: TaskLock = field(init=False)
    _policy: RestartPolicy = field(init=False)

    def __post_init__(self) -> None:
        directory = pipeline_directory(self.config, self.pipeline.name)
        make_directory(directory)
        self._lock = pipeline_lock(directory)
        told = () if self.reporter is None else (self.reporter.say,)
        self._status = StatusFile(self.pipeline.name, directory, *told)
        self._policy = RestartPolicy(max_delay_s=self.config.pipeline_restart_max_ms / 1000)

    def close(self) -> None:
        """Release the pipeline. Its status stays unless it stopped in order."""
        if self.failure is None and self.ending.lost_spark is None:
            self._status.remove()
        elif self.failure is None:
            why = f"{self.ending.lost_spark}."
            self._status.change(state="restarting", last_error=why, last_error_at_ms=now_ms())
        self._lock.release()

    def refuse(self, mistakes: Mapping[str, CallerError]) -> bool:
        """Fail the pipeline if one of these mistakes (by pipeline name) is its own, and return whether it did."""
        mistake = mistakes.get(self.pipeline.name)
        if mistake is not None:
            self._fail(mistake)
        return mistake is not None

    def work(self, session: SparkSession, terms: _Terms) -> None:
        """Run the pipeline, again and again, until it must stop or cannot continue."""
        stopping = self.ending.stopping
        while not stopping.is_set():
            began_s = time.monotonic()
            try:
                self._run_once(session, terms)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other pipelines must not notice
                if stopping.is_set():
                    return  # the next driver does what this one abandoned
                if _has_ended(session):
                    self.ending.lose_spark("Spark has ended")
                elif terms.available_now or isinstance(error, CallerError):
                    self._fail(error)
                else:
                    self._pause(error, self._policy.delay_after(time.monotonic() - began_s))
                    continue
            return

    def _run_once(self, session: SparkSession, terms: _Terms) -> None:
        name = self.pipeline.name
        self._status.change(state="starting", next_start_at_ms=None)
        if terms.own_sessions:
            session = session.newSession()  # temporary views, functions and settings of one pipeline stay its own
            session.sparkContext.setLocalProperty("spark.scheduler.pool", name)  # and none waits for another's tasks
        frames = topic_frames(session, self.config, self.log)
        directory = pipeline_directory(self.config, name)
        run = PipelineRun(
            self.pipeline, self.config, self.log, directory, frames, self._status, terms.starts, terms.has_started,
            self.ending.may_write,
        )  # fmt: skip
        run.until(self.ending.stopping, available_now=terms.available_now, progress=terms.progress)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._status.change(state="failed", last_error=message_of(error), last_error_at_ms=now_ms())
        if not self.ending.alone:
            _logger.error("pipeline %s has stopped: %s", self.pipeline.name, message_of(error))
        self._lock.release()  # once corrected, another driver may run it

    def _pause(self, error: Exception, delay_s: float) -> None:
        now = now_ms()
        self._status.change(
            state="restarting", last_error=message_of(error), last_error_at_ms=now,
            restarts=self._status.now.restarts + 1, next_start_at_ms=now + int(delay_s * 1000),
        )  # fmt: skip
        why = message_of(error).rstrip(".")
        _logger.error("pipeline %s failed: %s. It starts again in %g s.", self.pipeline.name, why, delay_s)
        _logger.debug("pipeline %s failed", self.pipeline.name, exc_info=error)
        self.ending.stopping.wait(delay_s)


def _require_connector(driven: Sequence[_Driven], config: Config, log: Log) -> None:
    """Call `require_connector`, and note its error in every pipeline's status."""
    try:
        require_connector(config, log)
    except ConfigurationError as error:
        for one in driven:
            one.refuse({one.pipeline.name: error})
        raise


def _drive(driven: Sequence[_Driven], session: SparkSession, terms: _Terms, ending: _Ending) -> None:
    threads = [
        threading.Thread(target=one.work, args=(session, terms), name=f"pipeline-{one.pipeline.name}") for one in driven
    ]
    with watched_master(session, ending.lose_spark):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_INTERVAL_S)  # not for ever, so that handlers of signals can run


def _judge(driven: Sequence[_Driven], ending: _Ending) -> None:
    failures = {one.pipeline.name: one.failure for one in driven if one.failure is not None}
    if ending.lost_spark is not None:
        raise StatelineError(
            f"{ending.lost_spark}: start the pipelines again. Each goes on behind its last micro-batch."
        )
    if not failures or ending.stopping.is_set():
        return
    mistakes = [error for error in failures.values() if isinstance(error, CallerError)]
    if len(mistakes) < len(failures):
        raise next(error for error in failures.values() if not isinstance(error, CallerError))
    if len(mistakes) > 1 or isinstance(mistakes[0], RecordError):
        said = " ".join(f"{name}: {error}" for name, error in failures.items())
        raise TopologyError(f"No pipeline can go on. {said}") from mistakes[0]
    raise mistakes[0]


def _has_ended(session: SparkSession) -> bool:
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # AttributeError: stopped from here
        return True
