"""A pipeline from its topics to its result topic, on the embedded log and on a broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark import departures as d
from service.spark.doubtful_log import DoubtfulLog
from stateline import serdes
from stateline.config.settings import Config
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.model.topic import Topic
from stateline.spark import KTable
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline.spark.sources.frames import TopicFrames
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    FencedError,
    LockedError,
    StatelineError,
    TaskLock,
    TopologyError,
)
from support.kafka.shared_broker import SharedBroker
from support.run.length import long_only, long_or_short

Run = Callable[..., list[PipelineStatus]]


@pytest.fixture
def run(session: SparkSession, config: Config, log: EmbeddedLog) -> Run:
    """Runs the pipeline over what is in the log now; what it reported."""

    def run_now(
        app: App = d.app,
        name: str = "hourly",
        *,
        config: Config = config,
        max_rows_per_batch: int = 200_000,
        **changes: object,
    ) -> list[PipelineStatus]:
        reports: list[PipelineStatus] = []
        given = config.model_copy(update={"pipeline_max_offsets_per_trigger": max_rows_per_batch})
        arguments: dict[str, object] = {"config": given, "log": log, "progress": reports.append} | changes
        run_pipelines(app, [name], available_now=True, session=session, **arguments)  # type: ignore[arg-type]  # by name
        return reports

    return run_now


def checkpoint(config: Config, name: str = "hourly") -> Path:
    return config.state_dir / "flights" / "pipelines" / name / "checkpoint"


def forget(folder: Path, batch: int) -> None:
    """Delete Spark's record of a micro-batch, and its checksum."""
    (folder / str(batch)).unlink()
    (folder / f".{batch}.crc").unlink(missing_ok=True)


@long_only("test_reset_pipelines.py and test_a_pipeline_on_a_broker_… compare the same results with plain Python")
def test_a_windowed_aggregation_with_a_static_join_equals_the_oracle(run: Run, log: EmbeddedLog) -> None:
    made = d.random_departures(900, seed=1)
    d.load(log, made)
    run(max_rows_per_batch=500)
    assert len(d.markers(log)) > 1
    assert d.written_updates(log) == d.expected_updates(log)
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}


@long_only("a micro-batch is replayed in test_a_pipeline_on_a_broker_…, and in test_sink.py on the embedded log")
def test_a_replayed_micro_batch_has_no_effect(run: Run, log: EmbeddedLog, config: Config) -> None:
    made = d.random_departures(600, seed=2)
    d.load(log, made[:300])
    run()
    written = d.written_updates(log)
    forget(checkpoint(config) / "commits", d.markers(log)[-1].batch_id)
    run()
    assert d.written_updates(log) == written
    d.load(log, made[300:])
    run()
    assert d.written_updates(log) == d.expected_updates(log)


@long_only("test_sink.py hands such a replay to the sink by itself")
def test_a_replay_that_ends_elsewhere_is_refused(run: Run, log: EmbeddedLog, config: Config) -> None:
    d.load(log, d.random_departures(100, seed=3))
    run(max_rows_per_batch=60)  # two micro-batches: Spark itself guards the first
    written, last = d.written_updates(log), d.markers(log)[-1].batch_id
    forget(checkpoint(config) / "commits", last)
    forget(checkpoint(config) / "offsets", last)
    d.load(log, d.random_departures(100, seed=4))
    with pytest.raises(DamagedDataError, match="lost a part"):
        run()
    assert d.written_updates(log) == written


@long_only("test_sink.py opens sinks whose checkpoint is gone, or is that of another query")
def test_a_deleted_checkpoint_is_refused_before_anything_is_written(run: Run, log: EmbeddedLog, config: Config) -> None:
    d.load(log, d.random_departures(100, seed=5))
    run()
    written = d.written_updates(log)
    shutil.rmtree(checkpoint(config))
    with pytest.raises(TopologyError, match=r"deleted or exchanged.*flights-hourly-epochs"):
        run()
    assert d.written_updates(log) == written


def test_a_pipeline_on_a_broker_equals_the_oracle_across_a_replay(
    run: Run, config: Config, kafka_broker: SharedBroker, connector_jars: Path | None
) -> None:
    if connector_jars is None:
        pytest.skip("Spark's Kafka connector cannot be fetched here")
    broker = KafkaLog(kafka_broker.bootstrap_servers)
    on_kafka = config.model_copy(update={"bootstrap_servers": kafka_broker.bootstrap_servers})
    made = d.random_departures(600, seed=8)
    d.create_topics(broker)
    d.load(broker, made[:400])
    run(config=on_kafka, log=broker, max_rows_per_batch=300)
    forget(checkpoint(config) / "commits", d.markers(broker)[-1].batch_id)
    d.load(broker, made[400:])
    run(config=on_kafka, log=broker)
    assert d.written_updates(broker) == d.expected_updates(broker)
    assert d.newest_updates(broker) == {d.update(*item) for item in d.totals(made).items()}
    with closing(broker.admin()) as admin:
        admin.delete_topics(["departures", "airports", "hourly", "flights-hourly-epochs"])


@long_only("test_sink.py has commits in doubt, of the sink by itself")
@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_in_doubt_is_settled_by_the_log_itself(run: Run, log: EmbeddedLog, committed: bool) -> None:
    d.load(log, d.random_departures(200, seed=6))
    doubtful = DoubtfulLog(log.embedded_file, committed=committed)
    run(log=doubtful)
    assert doubtful.doubts == 1
    assert d.written_updates(log) == d.expected_updates(log)


def test_an_older_driver_is_fenced(run: Run, log: EmbeddedLog) -> None:
    d.load(log, d.random_departures(600, seed=7))

    def take_over(status: PipelineStatus) -> None:
        with closing(log.producer("flights-hourly")) as newer:
            newer.init_transactions()

    with pytest.raises(FencedError, match=r"Another driver of pipeline .* stop one of them"):
        run(progress=take_over, max_rows_per_batch=20)
    assert d.written_updates(log) == d.expected_updates(log)


def test_a_second_driver_is_locked_out(run: Run, config: Config) -> None:
    directory = checkpoint(config).parent
    directory.mkdir(parents=True)
    lock = TaskLock(directory / ".lock")
    with pytest.raises(LockedError):
        run()
    lock.release()


# --- Records that are not as they should be

notes = App("flights")
notes_in = notes.topic("departures", key=serdes.string, value=serdes.json, schema="origin string, delay double")


@notes.pipeline(reads=notes_in, writes="hourly", key="origin", timestamp="_timestamp", output_mode="append")
def noted(rows: DataFrame) -> DataFrame:
    """Each departure as it is."""
    return rows


@notes.pipeline(reads=notes_in, writes="broken-out", key="origin", output_mode="append")
def broken(rows: DataFrame) -> DataFrame:
    """Fails on Spark's side."""
    return rows.select("origin", F.udf(_divide, "double")("delay").alias("delay"))


def _divide(delay: float) -> float:
    return delay / 0


def write(log: EmbeddedLog, *values: bytes | None) -> None:
    with closing(log.producer()) as producer:
        for value in values:
            producer.produce("departures", b"k", value, timestamp_ms=1000, partition=0)
        producer.flush()


def results(log: EmbeddedLog) -> list[tuple[bytes | None, object, int]]:
    return [(r.key, json.loads(r.value or b""), r.timestamp_ms) for r in d.read_all(log, "hourly")]


def test_a_value_that_is_not_json_of_the_schema_stops_the_pipeline_and_is_named(run: Run, log: EmbeddedLog) -> None:
    write(log, b'{"origin": "JFK", "delay": 1.5}', b'{"origin": "JFK", "delay": "late"}')
    with pytest.raises(StatelineError, match=r"departures-0 offset 1 is not JSON.*late"):
        run(notes, "noted")
    assert results(log) == []


def test_skip_leaves_such_values_and_tombstones_out_and_counts_the_former(
    run: Run, log: EmbeddedLog, config: Config
) -> None:
    no_numbers = [b'{"origin": "JFK", "delay": %b}' % name for name in (b"NaN", b"-Infinity", b"INF")]
    fine = b'{"origin": "\\" [NaN, Infinity]", "delay": null, "more": {"NaN": 1}}'
    write(log, b"no JSON", b"", *no_numbers, fine, None)
    skip = config.model_copy(update={"deserialization_exception_handler": "skip"})
    reports = run(notes, "noted", config=skip)
    origin = '" [NaN, Infinity]'
    assert results(log) == [(origin.encode(), {"origin": origin, "delay": None}, 1000)]
    assert sum(report.skipped for report in reports) == 5


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_record_from_before_1970_is_one_that_cannot_be_read(
    run: Run, log: EmbeddedLog, config: Config, policy: str
) -> None:
    with closing(log.producer()) as producer:
        for at in (1000, -1):
            producer.produce("departures", b"k", b'{"origin": "JFK"}', timestamp_ms=at, partition=0, is_copy=True)
        producer.flush()
    policies = config.model_copy(update={"deserialization_exception_handler": policy})
    if policy == "fail":
        with pytest.raises(StatelineError, match=r"departures-0 offset 1 is before 1970: -1.*exception\.handler=skip"):
            run(notes, "noted", config=policies)
    else:
        assert sum(report.skipped for report in run(notes, "noted", config=policies)) == 1
    assert [at for _, _, at in results(log)] == ([1000] if policy == "skip" else [])


def test_a_result_that_json_does_not_have_stops_the_pipeline_and_shows_the_row(run: Run, log: EmbeddedLog) -> None:
    write(log, b'{"origin": "JFK", "delay": "Infinity"}')
    with pytest.raises(TopologyError, match=r"'delay' holds NaN or an infinity, .*\"origin\":\"JFK\""):
        run(notes, "noted")
    assert results(log) == []


def test_a_null_key_stops_the_pipeline_and_shows_the_row(run: Run, log: EmbeddedLog) -> None:
    write(log, b'{"delay": 2.5}')
    with pytest.raises(TopologyError, match=r"'origin' is null .*2\.5"):
        run(notes, "noted")


def test_the_root_cause_of_a_failing_function_is_one_line(run: Run, log: EmbeddedLog) -> None:
    write(log, b'{"origin": "JFK", "delay": 2.5}')
    with pytest.raises(StatelineError) as raised:
        run(notes, "broken")
    assert str(raised.value) == "Pipeline 'broken' failed: ZeroDivisionError: float division by zero"


def test_a_topic_that_was_made_anew_ends_the_pipeline_with_the_sentence_of_its_source(
    run: Run, log: EmbeddedLog
) -> None:
    write(log, b'{"origin": "JFK", "delay": 2.5}')
    run(notes, "noted")
    with closing(log.admin()) as admin:
        admin.delete_topics(["departures"])
        admin.create_topics([NewTopic("departures", 1)])
    write(log, b'{"origin": "JFK", "delay": 2.5}')
    with pytest.raises(DoesNotExistError) as raised:
        run(notes, "noted")
    said = str(raised.value)
    assert said.startswith("Pipeline 'noted' failed: departures-0 was read up to offset 1, and in "), said
    assert said.endswith("delete the pipeline's checkpoint together with its result and epochs topics."), said


def test_a_failure_names_the_limit_that_was_reached(run: Run, log: EmbeddedLog, session: SparkSession) -> None:
    write(log, *(b'{"origin": "JFK", "delay": 2.5}' for _ in range(50)))
    settings = session.sparkContext._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "100")
    try:
        with pytest.raises(StatelineError) as raised:
            run(notes, "noted")
    finally:
        settings.remove("spark.driver.maxResultSize")
    said = str(raised.value)
    assert said.startswith("Pipeline 'noted' failed: SparkException: "), said
    assert "is bigger than spark.driver.maxResultSize (100.0 B)" in said
    assert len(said) < 400


# --- Topics without a schema, and static topics

plain = App("flights")
numbers = plain.topic("numbers", key=serdes.int64, value=serdes.int32)


@plain.pipeline(reads=numbers, static=[numbers], writes="hourly", key="key", output_mode="append")
def joined(stream: DataFrame, static: DataFrame) -> DataFrame:
    """Each number beside the newest of the same key."""
    return stream.join(static.select("key", F.col("value").alias("newest")), "key").select("key", "value", "newest")


looking = App("flights")
looked = looking.topic("numbers", key=serdes.int64, value=serdes.int32)
known = looking.topic("known", key=serdes.int64, value=serdes.int32)


@looking.pipeline(reads=looked, static=[known], writes="hourly", key="key", output_mode="append")
def looked_up(stream: DataFrame, static: DataFrame) -> DataFrame:
    """Each number beside what is known of its key, if anything is."""
    return stream.join(static.select("key", F.col("value").alias("newest")), "key", "left").select(
        "key", "value", "newest"
    )


def test_a_micro_batch_has_static_topics_as_they_are_when_it_begins(
    run: Run, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, batches = TopicFrames.settle_statics, iter(range(10))

    def put(value: int) -> None:
        with closing(log.producer()) as producer:
            producer.produce("known", serdes.int64.serialize(1), serdes.int32.serialize(value), timestamp_ms=0)
            producer.flush()

    def change(frames: TopicFrames, log: EmbeddedLog, topics: Iterable[Topic]) -> None:
        number = next(batches)
        put(number)
        settle(frames, log, topics)
        put(-number - 1)

    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("numbers", 1), NewTopic("known", 2)])
    for value in range(3):
        with closing(log.producer()) as producer:
            producer.produce("numbers", serdes.int64.serialize(1), serdes.int32.serialize(value), timestamp_ms=0)
            producer.flush()
    put(-100)
    monkeypatch.setattr(TopicFrames, "settle_statics", change)
    run(looking, "looked_up", max_rows_per_batch=1)
    assert [value for _, value, _ in results(log)] == [{"key": 1, "value": n, "newest": n} for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (lambda frame: frame.withColumn("_deleted", F.lit(1)), "'_deleted' is int: cast it to boolean"),
        (
            lambda frame: frame.select("*", F.lit(True).alias("_deleted"), F.lit(True).alias("_deleted")),
            "more than one",
        ),
    ],
)
def test_a_result_that_cannot_be_written_is_refused_in_one_line(
    run: Run, log: EmbeddedLog, rows: Callable[[DataFrame], DataFrame], says: str
) -> None:
    wrong = App("flights")
    source = wrong.topic("numbers", key=serdes.int64, value=serdes.int32)
    wrong.pipeline(reads=source, writes="hourly", key="key", name="wrong")(rows)
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("numbers", 1)])
    with pytest.raises(TopologyError, match=says) as raised:
        run(wrong, "wrong")
    assert "\n" not in str(raised.value)


def test_a_function_that_raises_is_named_with_its_line(run: Run, log: EmbeddedLog) -> None:
    wrong = App("flights")
    source = wrong.topic("numbers", key=serdes.int64, value=serdes.int32)

    @wrong.pipeline(reads=source, writes="hourly", key="key")
    def boom(frame: DataFrame) -> DataFrame:
        raise ValueError("my own mistake")

    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("numbers", 1)])
    with pytest.raises(
        StatelineError, match=r"pipeline 'boom' raised ValueError: my own mistake \(.*test_pipeline.py, li"
    ):
        run(wrong, "boom")


@long_only("test_typed.py decodes numbers, and test_a_micro_batch_has_static_topics_… reads a topic of them")
def test_numbers_are_decoded_and_a_static_topic_is_as_it_is_at_each_micro_batch(run: Run, log: EmbeddedLog) -> None:
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("numbers", 1)])
    produced: list[dict[str, int]] = []
    for value in (-7, 2_000_000_000):
        with closing(log.producer()) as producer:
            producer.produce("numbers", serdes.int64.serialize(-5), serdes.int32.serialize(value), timestamp_ms=0)
            producer.flush()
        produced.append({"key": -5, "value": value, "newest": value})
        run(plain, "joined")
    assert [value for _, value, _ in sorted(results(log), key=str)] == sorted(produced, key=str)


# --- Topics with a time of their own


def timed(policy: str) -> App:
    """Each departure as it is, with the time that its value has; as a stream and as a table."""
    app = App("flights")
    told = {"timestamp": "flight.at", "on_invalid_timestamp": policy}
    source = app.topic("departures", key=serdes.string, value=serdes.json, schema="origin string", **told)  # type: ignore[arg-type]

    @app.pipeline(reads=source, static=[source], writes="hourly", key="origin", timestamp="at", output_mode="append")
    def streamed(rows: DataFrame, static: DataFrame) -> DataFrame:
        newest = static.agg(F.max("_timestamp").alias("newest"))
        return rows.withColumn("at", F.col("_timestamp")).crossJoin(newest)

    @app.pipeline(reads=[], tables=[source], writes="broken-out", key="_key", timestamp="at")
    def kept(rows: KTable) -> DataFrame:
        return rows.to_stream().withColumn("at", F.col("_timestamp"))

    return app


def departure(at: object, origin: str = "JFK") -> bytes:
    return json.dumps({"origin": origin, "flight": {"at": at}}).encode()


VALID = [(0, 0), (1_367_409_600_123, 1_367_409_600_123), (2.9, 2), ("2013-05-01T12:00:00Z", 1_367_409_600_000)]
VALID += [("1970-01-01T02:00:00.005+02:00", 5), ("1970-01-01 00:00:01+00:00", 1_000)]


def test_a_field_is_the_timestamp_of_a_topics_rows_as_the_worker_reads_it(run: Run, log: EmbeddedLog) -> None:
    write(log, *(departure(at) for at, _ in VALID))
    run(timed("fail"), "streamed")
    assert sorted(at for *_, at in results(log)) == sorted(wanted for _, wanted in VALID)
    assert {json.dumps(value["newest"]) for _, value, _ in results(log)} == {'"1970-01-01T00:00:01Z"'}  # type: ignore[index]


INVALID = [-1, None, "soon", "2013-05-01T12:00:00", True, [1], 1e300, "-15", "NaN"]


# Where they are left out, the next test shows each.
@pytest.mark.parametrize("bad", long_or_short(INVALID, INVALID[-1:]), ids=str)
def test_a_row_without_a_valid_time_ends_the_pipeline(run: Run, log: EmbeddedLog, bad: object) -> None:
    write(log, departure(7), departure(bad, "LGA"), departure(9), None)
    with pytest.raises(StatelineError, match=r"departures-0 offset 1 has no valid timestamp \(field 'flight.at'\)"):
        run(timed("fail"), "streamed")


def test_rows_without_a_valid_time_are_left_out_where_that_is_the_policy(run: Run, log: EmbeddedLog) -> None:
    write(log, departure(7), *(departure(bad, "LGA") for bad in INVALID), departure(9), None)
    with pytest.raises(StatelineError, match="departures-0 offset 1 has no valid timestamp"):
        run(timed("fail"), "streamed")
    run(timed("skip"), "streamed")
    assert [(key, at) for key, _, at in results(log)] == [(b"JFK", 7), (b"JFK", 9)]


def test_a_deletion_has_no_time_and_skip_leaves_out_no_value_that_is_not_json(run: Run, log: EmbeddedLog) -> None:
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("broken-out", 1)])
    write(log, departure(7), None)
    with pytest.raises(StatelineError, match=r"departures-0 offset 1 has no valid timestamp .*it is a deletion"):
        run(timed("fail"), "kept")
    run(timed("skip"), "kept")
    assert [(r.key, r.timestamp_ms) for r in d.read_all(log, "broken-out")] == [(b"k", 7)]
    write(log, b"no JSON")
    with pytest.raises(StatelineError, match="departures-0 offset 2 is not JSON"):
        run(timed("skip"), "kept")
