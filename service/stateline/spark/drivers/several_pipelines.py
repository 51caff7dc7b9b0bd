"""Several pipelines in one driver: one Spark session, and for each pipeline a query, a sink, locks and a status.

A pipeline that fails is started again by itself, after 500 ms, doubling to ``pipeline.restart.max.ms``, from 500 ms
again once it ran for 20 s; the others do not notice. One that fails because of a mistake of the caller's (a
`CallerError`: the application, a topic, a record) is not: it stays `failed` until the driver is started anew. When
Spark itself ends, or its cluster has gone for good, the driver does.
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
from stateline.deployment.topics import ensure_topics
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.interface import Admin
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.pipeline import Pipeline
from stateline.model.topology import Topology
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
from stateline.spark.drivers.process import LOOK_INTERVAL_S, Stopping, driver_session, pipeline_lock, stop_on_signals
from stateline.spark.drivers.start_turns import in_turn
from stateline.spark.drivers.status import Progress, StatusFile
from stateline.spark.drivers.table_warnings import warn_of_tables
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
    """Run these pipelines side by side until SIGTERM or SIGINT; with `available_now`, until each has read what is
    there now. Then nothing is started again, and the first failure is raised when all are through.

    `progress` is called after each micro-batch, on another thread. A `session` of the caller's is used and left
    running; one of the driver's own has its class archive recorded when there is none. Signals are handled only on the
    main thread. Where another node may run them (`pipeline.checkpoint.location`), it waits until these are this one's,
    and when that is drained, for the signal; losing one ends the process.

    Raises `DoesNotExistError` for an unknown pipeline, `LockedError` while another driver runs one of them, and
    `ConfigurationError` without Spark's Kafka connector where it is needed, before anything is started; the caller's
    mistake once all pipelines have failed because of one; `StatelineError` when Spark ended or its cluster has gone.
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
        reporter = _reporter(config, log)
        if reporter is not None:
            resources.callback(reporter.close)
        driven = [resources.enter_context(closing(_Driven(p, config, log, ending, reporter))) for p in pipelines]
        if session is None:
            _require_connector(driven, config, log)
        settle_resets(config, log)  # behind the locks, by which a reset sees that these run
        if able := _that_have_their_topics(driven, app, config, log):
            application = config.state_dir / config.application_id
            has_started = resources.enter_context(in_turn(application, ending.stopping))
            terms = replace(terms, has_started=has_started)
            with driver_session(config, ending.stopping, session) as running:
                if running is not None:
                    if session is None:
                        resources.enter_context(recording_class_archive(config))
                    _warn(able, running, app, config, log)
                    _drive(able, running, terms, ending)
        _judge(driven, ending)


def _that_have_their_topics(driven: Sequence[_Driven], app: App, config: Config, log: Log) -> list[_Driven]:
    """The others are refused."""
    with closing(log.admin()) as admin:
        mistakes = _missing_topics(app.topology(), [one.pipeline for one in driven], admin, ConfiguredTopics.of(config))
    return [one for one in driven if not one.refuse(mistakes)]


def _warn(driven: Sequence[_Driven], session: SparkSession, app: App, config: Config, log: Log) -> None:
    """Of these pipelines' topics of tables that lose rows. Where the log or a checkpoint is out of reach, each pipeline
    says so when it starts."""
    places = [(one.pipeline, pipeline_checkpoint(session, config, one.pipeline.name)) for one in driven]
    with suppress(RetryLaterError), closing(log.admin()) as admin:
        warn_of_tables(app.topology(), admin, places)


def _reporter(config: Config, log: Log) -> PipelineReporter | None:
    """Who tells servers on other machines; there are none of an embedded log."""
    if log.embedded_file is not None:
        return None
    directory = StateDirectory(config.state_dir, config.application_id).process_id()
    return PipelineReporter(log, config.application_id, config.node, str(directory))


@dataclass(slots=True)
class _Ending:
    """Why all pipelines of a driver end: shared by their threads."""

    stopping: Stopping
    """Set by a signal, and when Spark has ended."""
    alone: bool
    """There is one only: what it ends with, the driver does."""
    may_write: Callable[[], bool]
    """Whether no other node can have these pipelines at this moment."""
    lost_spark: str | None = None
    """Why Spark cannot be used any more."""

    def lose_spark(self, why: str) -> None:
        """Spark has ended, or is of no use: all pipelines end, and the driver with this error."""
        self.lost_spark = why
        self.stopping.set()


@dataclass(frozen=True, slots=True)
class _Terms:
    """How the pipelines of a driver are run."""

    available_now: bool
    progress: Progress | None
    own_sessions: bool
    starts: threading.Semaphore
    """As many start at a time as there are processors: the first ones are up while the others wait."""
    has_started: Callable[[], None] = lambda: None
    """Lets the next driver start Spark: a pipeline of this one runs."""


@dataclass(slots=True)
class _Driven:
    """One pipeline of a driver: `work` is done by a thread of its own, the rest by the driver's."""

    pipeline: Pipeline
    config: Config
    log: Log
    ending: _Ending
    reporter: PipelineReporter | None
    failure: Exception | None = None
    """Why it ended by itself."""
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
        """Let go of the pipeline. What is said of it stays, unless it stopped in order."""
        if self.failure is None and self.ending.lost_spark is None:
            self._status.remove()
        elif self.failure is None:
            why = f"{self.ending.lost_spark}."
            self._status.change(state="restarting", last_error=why, last_error_at_ms=now_ms())
        self._lock.release()

    def refuse(self, mistakes: Mapping[str, CallerError]) -> bool:
        """Whether one of these, by the names of pipelines, keeps it from starting."""
        mistake = mistakes.get(self.pipeline.name)
        if mistake is not None:
            self._fail(mistake)
        return mistake is not None

    def work(self, session: SparkSession, terms: _Terms) -> None:
        """Run the pipeline, again and again, until it is told to stop or cannot go on."""
        stopping = self.ending.stopping
        while not stopping.is_set():
            began_s = time.monotonic()
            try:
                self._run_once(session, terms)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other pipelines must not notice
                if stopping.is_set():
                    return  # whatever it abandoned, the next driver does
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
            self.pipeline,
            self.config,
            self.log,
            directory,
            frames,
            self._status,
            terms.starts,
            terms.has_started,
            self.ending.may_write,
        )
        run.until(self.ending.stopping, available_now=terms.available_now, progress=terms.progress)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._status.change(state="failed", last_error=message_of(error), last_error_at_ms=now_ms())
        if not self.ending.alone:
            _logger.error("pipeline %s has stopped: %s", self.pipeline.name, message_of(error))
        self._lock.release()  # corrected, it may be started elsewhere while the others run on here

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
    """As `require_connector`, and every pipeline's status says it."""
    try:
        require_connector(config, log)
    except ConfigurationError as error:
        for one in driven:
            one.refuse({one.pipeline.name: error})
        raise


def _drive(driven: Sequence[_Driven], session: SparkSession, terms: _Terms, ending: _Ending) -> None:
    """Work on all of them until each has ended, or Spark's cluster has gone."""
    threads = [
        threading.Thread(target=one.work, args=(session, terms), name=f"pipeline-{one.pipeline.name}") for one in driven
    ]
    with watched_master(session, ending.lose_spark):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_INTERVAL_S)  # and not for ever: a signal's handler runs between two of these


def _judge(driven: Sequence[_Driven], ending: _Ending) -> None:
    """Raise what makes the driver end otherwise than in order."""
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
    """Whether Spark has ended: its JVM, or the context in it."""
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # AttributeError: stopped from here
        return True


def _missing_topics(
    topology: Topology, pipelines: Sequence[Pipeline], admin: Admin, configured: ConfiguredTopics
) -> dict[str, TopologyError]:
    """Create the topics that are Stateline's own; why pipelines cannot start, by their names.

    A pipeline may read what another one writes: as long as some can have their topics, the others are asked again.
    """
    with suppress(TopologyError):  # it may be about another pipeline, or a store
        ensure_topics(topology, admin, configured=configured)
        return {}
    waiting = [pipeline.name for pipeline in pipelines]
    while True:
        mistakes: dict[str, TopologyError] = {}
        for name in waiting:
            try:
                ensure_topics(_only(topology, name), admin, configured=configured)
            except TopologyError as error:
                mistakes[name] = error
        if len(mistakes) == len(waiting):
            return mistakes
        waiting = list(mistakes)


def _only(topology: Topology, name: str) -> Topology:
    """The application as if it were nothing but this pipeline."""
    return replace(topology, subtopologies=(), stores={}, pipelines={name: topology.pipelines[name]})
