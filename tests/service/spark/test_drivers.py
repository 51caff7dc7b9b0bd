"""Several pipelines in one driver: what one of them does is nothing to the others."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark import departures as d
from stateline import serdes
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.pipelines.status import PipelineStatus, read_status
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import epochs_topic
from stateline.spark.drivers.one_pipeline import BatchGate
from stateline.spark.drivers.root_cause import kind_of, start_cause
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.sink.checkpoint import Ends, ends_of_batch
from stateline.spark.sink.checkpoint_folder import CheckpointFolder, LocalFolder
from stateline.spark.sink.topic_records import newest_markers
from stateline_store import DoesNotExistError, LockedError, StatelineError, TaskLock, TopologyError
from support.run.patience import HANGING_S

_AN_HOUR_MS = 3_600_000
Reports = list[PipelineStatus]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config("numbers", overrides=[*d.settings(str(tmp_path)), "pipeline.restart.max.ms=1000"])


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    made = EmbeddedLog(tmp_path / "log.db")
    with closing(made.admin()) as admin:
        admin.create_topics([NewTopic("numbers", 1)])
    return made


def write(log: EmbeddedLog, *numbers: int) -> None:
    with closing(log.producer()) as producer:
        for number in numbers:
            producer.produce("numbers", b"k", json.dumps({"n": number}).encode(), timestamp_ms=1000)
        producer.flush()


def written(log: EmbeddedLog, topic: str) -> list[int]:
    """The numbers in the topic, in order; none before it exists."""
    with closing(log.admin()) as admin:
        if topic not in admin.topics():
            return []
    return sorted(json.loads(record.value or b"")["n"] for record in d.read_all(log, topic))


def directory(config: Config, name: str) -> Path:
    return config.state_dir / "numbers" / "pipelines" / name


Function = Callable[[DataFrame], Any]


def keyed(rows: DataFrame) -> DataFrame:
    """Each number under itself."""
    return rows.select(F.col("n").cast("string").alias("k"), "n")


def declared(**pipelines: Function | tuple[Function, dict[str, Any]]) -> App:
    """An application with these pipelines, each of which writes to a topic of its own name."""
    app = App("numbers")
    numbers = app.topic("numbers", key=serdes.string, value=serdes.json, schema="n bigint")
    for name, given in pipelines.items():
        function, terms = given if isinstance(given, tuple) else (given, {})
        function.__name__ = name
        made = {"reads": numbers, "writes": f"{name}-out", "key": "k", "output_mode": "append", **terms}
        app.pipeline(**made)(function)
    return app


def named(name: str, function: Function) -> Function:
    """A function of its own, so that two pipelines may do the same."""
    made: Function = lambda rows: function(rows)  # noqa: E731  # a name is given to it
    made.__name__ = name
    return made


class Watcher:
    """Stops a driver on the main thread, as an operator does, once a condition holds; fails if that takes too long."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self.met = False
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert self.met, "the condition did not come true in time"

    def _watch(self) -> None:
        deadline_s = time.monotonic() + HANGING_S
        while not self.met and time.monotonic() < deadline_s:
            time.sleep(0.05)
            self.met = self._condition()
        os.kill(os.getpid(), signal.SIGTERM)


def test_pipelines_of_one_driver_each_have_their_query_their_sink_and_their_trigger(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    app = declared(quick=named("quick", keyed), slow=(named("slow", keyed), {"trigger_ms": _AN_HOUR_MS}))
    write(log, 1, 2)
    reports: Reports = []

    def both_have_begun() -> bool:
        if written(log, "quick-out") == [1, 2] and written(log, "slow-out") == [1, 2]:
            write(log, 3)
            return True
        return False

    begun = False

    def condition() -> bool:
        nonlocal begun
        begun = begun or both_have_begun()
        both_have_told = {report.pipeline for report in reports} == {"quick", "slow"}
        return begun and both_have_told and written(log, "quick-out") == [1, 2, 3]

    with Watcher(condition):
        run_pipelines(app, ["quick", "slow"], config, log, session=session, progress=reports.append)
    assert written(log, "slow-out") == [1, 2], "its next micro-batch is an hour away"
    assert len({report.query_id for report in reports}) == 2
    assert [read_status(directory(config, name)) for name in ("quick", "slow")] == [None, None]


def test_of_many_pipelines_no_more_start_at_a_time_than_there_are_processors(
    session: SparkSession, config: Config, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    write(log, 1)
    lock, starting, most, are_two = threading.Lock(), 0, 0, threading.Event()

    def slow(rows: DataFrame) -> DataFrame:
        nonlocal starting, most
        with lock:
            starting += 1
            most = max(most, starting)
            if starting == 2:
                are_two.set()
        assert are_two.wait(HANGING_S), "one after the other"
        time.sleep(0.3)
        with lock:
            starting -= 1
        return keyed(rows)

    names = [f"p{n}" for n in range(5)]
    app = declared(**{name: named(name, slow) for name in names})
    run_pipelines(app, names, config, log, available_now=True, session=session)
    assert most == 2
    assert [written(log, f"{name}-out") for name in names] == [[1]] * 5


def test_a_plan_of_another_driver_in_the_checkpoint_is_computed_instead_of_the_own_one(
    session: SparkSession, config: Config, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two drivers have planned the first micro-batch at once, and the file is the other one's, who had read less."""
    app = declared(one=named("one", keyed))
    write(log, *range(30))
    moving = config.model_copy(update={"pipeline_checkpoint_location": str(tmp_path / "shared")})
    folder = tmp_path / "shared" / "numbers" / "pipelines" / "one" / "checkpoint"
    checkpoint = LocalFolder(folder)
    given, replaced = ends_of_batch, list[str]()

    def after_the_other(at: CheckpointFolder, batch_id: int) -> Ends:
        (own,) = given(at, batch_id)
        if not replaced:
            plan, other = folder / "offsets" / str(batch_id), (own or "").replace("30", "20")
            replaced.append(plan.read_text().replace(own or "", other))
            plan.with_name(f".{batch_id}.crc").unlink(missing_ok=True)
            plan.write_text(replaced[0])
        return given(at, batch_id)

    monkeypatch.setattr("stateline.spark.sink.epoch_sink.ends_of_batch", after_the_other)
    with Watcher(lambda: written(log, "one-out") == list(range(30))):
        run_pipelines(app, ["one"], moving, log, session=session, progress=lambda _: None)
    assert given(checkpoint, 0) != given(checkpoint, 1)
    assert [marker.batch_id for marker in newest_markers(log, epochs_topic("numbers", "one"))] == [0, 1]
    assert not directory(config, "one").joinpath("checkpoint").exists()


def test_available_now_reads_what_is_there_and_ends(session: SparkSession, config: Config, log: EmbeddedLog) -> None:
    app = declared(one=named("one", keyed), two=named("two", keyed))
    write(log, *range(30))
    reports: Reports = []
    by_twenty = config.model_copy(update={"pipeline_max_offsets_per_trigger": 20})
    run_pipelines(app, ["one", "two"], by_twenty, log, session=session, available_now=True, progress=reports.append)
    assert written(log, "one-out") == written(log, "two-out") == list(range(30))
    lags = {name: [r.lag for r in reports if r.pipeline == name] for name in ("one", "two")}
    assert lags == {"one": [10, 0], "two": [10, 0]}


def test_a_pipeline_that_fails_is_started_again_and_the_others_do_not_notice(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    attempts: list[float] = []
    at_start: list[PipelineStatus | None] = []
    between: list[PipelineStatus] = []

    def failing(rows: DataFrame) -> DataFrame:
        attempts.append(time.monotonic())
        at_start.append(read_status(directory(config, "failing")))
        if len(attempts) <= 2:
            raise RuntimeError(f"not yet {len(attempts)}")
        return keyed(rows)

    steady: Reports = []
    app = declared(failing=failing, steady=named("steady", keyed))
    write(log, 1)

    def condition() -> bool:
        if (status := read_status(directory(config, "failing"))) and status.state == "restarting":
            between.append(status)
        told = {report.pipeline for report in steady}
        return told == {"failing", "steady"} and written(log, "failing-out") == [1] == written(log, "steady-out")

    with Watcher(condition):
        run_pipelines(app, ["failing", "steady"], config, log, session=session, progress=steady.append)
    assert len(attempts) == 3
    assert attempts[1] - attempts[0] >= 0.5
    assert attempts[2] - attempts[1] >= 1.0, "the pause doubles"
    assert [(s.state, s.restarts) for s in at_start if s] == [("starting", n) for n in range(3)]
    told = [str(s.last_error) for s in at_start if s]
    assert told[0] == "None"
    for n in (1, 2):
        assert told[n].startswith(f"The function of pipeline 'failing' raised RuntimeError: not yet {n} (")
    assert all((s.next_start_at_ms or 0) > (s.last_error_at_ms or 0) for s in between)
    assert {r.restarts for r in steady if r.pipeline == "steady"} == {0}
    assert {r.restarts for r in steady if r.pipeline == "failing"} == {2}


def test_a_query_that_spark_does_not_start_is_started_again_and_one_line_says_why(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    write(log, 1)
    plan = directory(config, "one") / "checkpoint" / "offsets" / "0"  # without the checkpoint's metadata
    plan.parent.mkdir(parents=True)
    plan.write_text("v1")
    told: list[str] = []

    def condition() -> bool:
        status = read_status(directory(config, "one"))
        if not told and status is not None and status.state == "restarting":
            told.append(str(status.last_error))
            plan.unlink()
        return written(log, "one-out") == [1]

    with Watcher(condition):
        run_pipelines(declared(one=keyed), ["one"], config, log, session=session, progress=lambda _: None)
    (said,) = told
    assert re.match(r"Pipeline 'one' failed: \w+: \[STREAMING_CHECKPOINT_MISSING_METADATA_FILE\] ", said), said
    assert "\tat " not in said
    assert " at org." not in said, "no stack"


def test_a_mistake_of_the_callers_stops_that_pipeline_alone(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    def mistaken(rows: DataFrame) -> int:
        return 17

    app = declared(mistaken=mistaken, steady=named("steady", keyed))
    write(log, 1)

    def condition() -> bool:
        status = read_status(directory(config, "mistaken"))
        return written(log, "steady-out") == [1] and status is not None and status.state == "failed"

    with Watcher(condition):
        run_pipelines(app, ["mistaken", "steady"], config, log, session=session, progress=lambda _: None)
    status = read_status(directory(config, "mistaken"))
    assert status is not None, "what went wrong stays"
    assert (status.state, status.restarts) == ("failed", 0)
    assert "returned int, not a streaming DataFrame" in str(status.last_error)


def test_a_record_that_cannot_be_read_is_a_mistake_and_no_reason_to_start_again(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    with closing(log.producer()) as producer:
        producer.produce("numbers", b"k", b"no JSON", timestamp_ms=1000)
        producer.flush()
    with pytest.raises(TopologyError, match=r"No pipeline can go on\. one: .*numbers-0 offset 0"):
        run_pipelines(declared(one=keyed), ["one"], config, log, session=session)


def test_when_all_pipelines_have_stopped_by_mistakes_the_driver_says_why(config: Config, log: EmbeddedLog) -> None:
    app = App("numbers")
    absent = app.topic("absent", key=serdes.string, value=serdes.json)
    gone = app.topic("gone", key=serdes.string, value=serdes.json)
    app.pipeline(reads=absent, writes="a", key="k")(named("first", keyed))
    app.pipeline(reads=gone, writes="b", key="k")(named("second", keyed))
    with pytest.raises(TopologyError, match=r"first: Missing source topic: absent.*second: Missing source topic: gone"):
        run_pipelines(app, ["first", "second"], config, log)  # before Spark is started


def test_a_pipeline_may_read_what_another_one_writes(session: SparkSession, config: Config, log: EmbeddedLog) -> None:
    app = App("numbers")
    numbers = app.topic("numbers", key=serdes.string, value=serdes.json, schema="n bigint")
    between = app.topic("between", key=serdes.string, value=serdes.json, schema="n bigint")
    absent = app.topic("absent", key=serdes.string, value=serdes.json)
    app.pipeline(reads=between, writes="end", key="k", output_mode="append")(named("second", keyed))
    app.pipeline(reads=numbers, writes=between, key="k", output_mode="append")(named("first", keyed))
    app.pipeline(reads=absent, writes="none", key="k", output_mode="append")(named("third", keyed))
    write(log, 5)
    with Watcher(lambda: written(log, "end") == [5]):
        run_pipelines(app, ["second", "first", "third"], config, log, session=session)
    status = read_status(directory(config, "third"))
    assert status is not None
    assert str(status.last_error).startswith("Missing source topic: absent.")


def test_a_failure_under_available_now_is_raised_when_the_others_are_through(
    session: SparkSession, config: Config, log: EmbeddedLog
) -> None:
    def failing(rows: DataFrame) -> DataFrame:
        raise RuntimeError("not today")

    app = declared(failing=failing, steady=named("steady", keyed))
    write(log, 1)
    with pytest.raises(StatelineError, match="pipeline 'failing' raised RuntimeError: not today"):
        run_pipelines(app, ["failing", "steady"], config, log, session=session, available_now=True)
    assert written(log, "steady-out") == [1]


def test_a_pipeline_that_another_driver_runs_is_refused_before_anything_is_started(
    config: Config, log: EmbeddedLog
) -> None:
    app = declared(one=named("one", keyed), two=named("two", keyed))
    (directory(config, "two")).mkdir(parents=True)
    with TaskLock(directory(config, "two") / ".lock"), pytest.raises(LockedError):
        run_pipelines(app, ["one", "two"], config, log)
    TaskLock(directory(config, "one") / ".lock").release()  # it was let go of


def test_an_unknown_pipeline_is_refused(config: Config, log: EmbeddedLog) -> None:
    with pytest.raises(DoesNotExistError, match="no pipeline 'three'; it has one"):
        run_pipelines(declared(one=keyed), ["three"], config, log)


# A stop


def test_a_stop_waits_for_the_micro_batch_that_is_written_and_lets_no_other_begin() -> None:
    begun, may_end = threading.Event(), threading.Event()
    written: list[int] = []

    def sink(frame: Any, batch_id: int) -> None:
        begun.set()
        assert may_end.wait(HANGING_S)
        written.append(batch_id)

    gate, nothing = BatchGate(sink), cast(DataFrame, None)
    writing = threading.Thread(target=gate, args=(nothing, 7))
    writing.start()
    assert begun.wait(HANGING_S)
    gate.shut(0.01)
    assert written == [], "it does not wait for ever"
    threading.Timer(0.05, may_end.set).start()
    gate.shut(HANGING_S)
    assert written == [7]
    with pytest.raises(StatelineError, match="The pipeline stops"):
        gate(nothing, 8)
    writing.join()
    assert written == [7]


def test_the_kind_of_an_error_survives_sparks_words() -> None:
    assert kind_of("stateline_store.errors.DoesNotExistError: no topic") is DoesNotExistError
    assert kind_of("stateline_store.errors.Nonsense: no topic") is StatelineError
    assert kind_of("ZeroDivisionError: float division by zero") is StatelineError


def test_an_error_of_java_without_a_message_is_told_in_its_own_words(session: SparkSession) -> None:
    jvm: Any = session.sparkContext._jvm
    failed = getattr(jvm.org.apache.hadoop.util, "Shell$ExitCodeException")(1, "")  # of a `chmod`, for instance
    assert start_cause(Py4JJavaError("An error occurred while calling o1.start.\n", failed)) == (
        "ExitCodeException exitCode=1:"
    )
