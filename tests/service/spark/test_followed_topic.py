"""What a static topic gives in each micro-batch, and what is read of the log for it."""

from __future__ import annotations

import json
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from stateline import serdes
from stateline.config.loading import load_config
from stateline.log import Log, NewTopic, Record
from stateline.log.embedded import EmbeddedLog
from stateline.log.kafka import KafkaLog
from stateline.model.topic import Topic
from stateline.spark.sources import newest_files
from stateline.spark.sources.followed_topic import FollowedTopicReader, as_of_now
from stateline.spark.sources.frames import topic_frames
from stateline.spark.sources.newest_files import BatchSpan, private_folder
from stateline_store import ConfigurationError, DoesNotExistError, TopicPartition
from support.kafka.shared_broker import SharedBroker
from support.log.log_bench import Bench
from support.processes.query_server import wait_until
from support.run.length import long_only, long_or_short

Rows = dict[bytes, bytes]


class Reader(FollowedTopicReader):
    """Notes how many records were read."""

    read_records = 0
    told: list[BatchSpan] | None = None
    """What a micro-batch is to read."""

    def changes(self, span: BatchSpan, since: int) -> Iterator[list[Record]]:
        for page in super().changes(span, since):
            self.read_records += len(page)
            yield page

    def _now(self) -> list[BatchSpan]:
        return super()._now() if self.told is None else self.told

    def rows(self, told: list[BatchSpan] | None = None) -> Rows:
        """Everything that a micro-batch gets; it has no key twice."""
        self.told = told
        shares = self.partitions()
        found = [
            row for share in shares for batch in self.read(share) for row in batch.select(["key", "value"]).to_pylist()
        ]
        assert len({row["key"] for row in found}) == len(found)
        return {row["key"]: row["value"] for row in found}


@pytest.fixture(params=["embedded", "kafka"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made: Log
    if request.param == "embedded":
        made = EmbeddedLog(tmp_path / "log.db")
    else:
        broker: SharedBroker = request.getfixturevalue("kafka_broker")
        made = KafkaLog(broker.bootstrap_servers)
    with closing(made):
        bench = Bench(made)
        yield bench
        bench.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's own directory."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'executor'},{tmp_path / 'other'}")
    return tmp_path / "executor"


def servers(log: Log) -> str:
    return log.bootstrap_servers if isinstance(log, KafkaLog) else f"embedded:{log.embedded_file}"


def reader(bench: Bench, topic: str, **options: str) -> Reader:
    given = {"bootstrap.servers": servers(bench.log), "state.dir": "unused", "subscribe": topic}
    return Reader(given | options)


def put(bench: Bench, topic: str, rows: dict[bytes, bytes | None], partition: int = 0) -> None:
    producer = bench.producer()
    for key, value in rows.items():
        producer.produce(topic, key, value, timestamp_ms=1_000, partition=partition)
    producer.flush()


def files(disk: Path) -> list[Path]:
    return sorted(disk.rglob("*.arrow"))


_ON_EMBEDDED = pytest.mark.parametrize(
    "bench",
    ["embedded", pytest.param("kafka", marks=long_only("the embedded log gives records in the same form"))],
    indirect=True,
)


def test_each_micro_batch_has_the_newest_of_each_key_and_reads_what_is_new_alone(
    bench: Bench, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_files, "_CHANGES_AT_ONCE", 7)
    monkeypatch.setattr(newest_files, "_ROWS_PER_BATCH", 5)
    topic, chance, oracle, written = bench.topic(3), random.Random(1), Rows(), 0
    read, producer = reader(bench, topic), bench.producer()
    for _ in range(12):
        for _ in range(chance.choice([0, 1, 40])):
            key, value = b"%d" % chance.randrange(30), chance.choice([None, b"%d" % chance.randrange(999)])
            producer.produce(topic, key, value, timestamp_ms=1_000, partition=int(key) % 3)
            written += 1
            oracle.pop(key, None)
            if value is not None:
                oracle[key] = value
        producer.flush()
        assert read.rows() == read.rows() == oracle
        assert read.read_records == written
    assert len(files(disk)) <= 6


@_ON_EMBEDDED
@pytest.mark.parametrize(("tasks", "found"), [("1", 1), ("2", 2), ("9", 3)])
def test_as_many_tasks_as_are_wanted_share_the_partitions(bench: Bench, disk: Path, tasks: str, found: int) -> None:
    topic = bench.topic(3)
    for partition in range(3):
        put(bench, topic, {b"%d" % partition: b"v"}, partition)
    read = reader(bench, topic, tasks=tasks)
    assert len(read.partitions()) == found
    assert read.rows() == {b"0": b"v", b"1": b"v", b"2": b"v"}


def test_the_columns_are_those_of_a_record_and_records_without_a_key_are_left_out(bench: Bench, disk: Path) -> None:
    topic = bench.topic(2)
    bench.write(topic, b"no key", partition=1)
    put(bench, topic, {b"k": b"v"}, 1)
    read = reader(bench, topic)
    rows = [row for share in read.partitions() for batch in read.read(share) for row in batch.to_pylist()]
    at = rows[0].pop("timestamp")
    assert rows == [{"key": b"k", "value": b"v", "topic": topic, "partition": 1, "offset": 1}]
    assert at.timestamp() == 1.0


@_ON_EMBEDDED
def test_tasks_read_to_the_end_that_they_are_told_also_when_repeated(bench: Bench, disk: Path) -> None:
    topic = bench.topic()
    put(bench, topic, {b"k": b"1"})
    read = reader(bench, topic)
    plan = [BatchSpan(*each) for each in json.loads(as_of_now(bench.log, [topic]))[topic]]
    put(bench, topic, {b"k": b"2", b"new": b"3"})
    assert read.rows(plan) == {b"k": b"1"}
    assert read.rows() == {b"k": b"2", b"new": b"3"}
    assert read.rows(plan) == {b"k": b"1"}
    assert read.rows() == {b"k": b"2", b"new": b"3"}


def test_a_transaction_that_is_open_or_aborted_is_not_read(bench: Bench, disk: Path) -> None:
    topic, producer = bench.topic(), bench.producer("x")
    read = reader(bench, topic)
    expected = Rows()
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, b"k", value, timestamp_ms=7, partition=0)
        producer.flush()
        assert read.rows() == expected
        if commits:
            producer.commit_transaction()
            expected = {b"k": value}
        else:
            producer.abort_transaction()
        place = TopicPartition(topic, 0)
        bench.end(place, bench.admin.log_end(place))
        assert read.rows() == expected


@_ON_EMBEDDED
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b"")]
)
def test_files_that_are_damaged_or_gone_are_read_anew(bench: Bench, disk: Path, damage: Callable[[Path], None]) -> None:
    topic = bench.topic()
    put(bench, topic, {b"a": b"1", b"b": b"2"})
    read = reader(bench, topic)
    assert read.rows() == read.rows() == {b"a": b"1", b"b": b"2"}
    for path in files(disk):
        damage(path)
    assert read.rows() == read.rows() == {b"a": b"1", b"b": b"2"}
    assert read.read_records == 4


def test_records_that_the_log_has_deleted_are_left_out(bench: Bench, disk: Path) -> None:
    topic = bench.topic()
    put(bench, topic, {b"a": b"1", b"b": b"2", b"c": b"3"})
    read = reader(bench, topic)
    assert set(read.rows()) == {b"a", b"b", b"c"}
    place = TopicPartition(topic, 0)
    bench.admin.delete_records({place: 2})
    assert read.rows() == {b"c": b"3"}
    put(bench, topic, {b"c": b"4", b"d": b"5", b"e": b"6"})
    bench.admin.delete_records({place: 5})  # also what was not read yet
    assert read.rows() == {b"e": b"6"}
    bench.admin.delete_records({place: 6})
    assert read.rows() == {}


def test_a_topic_made_anew_is_read_from_its_start_and_one_that_is_gone_is_named(bench: Bench, disk: Path) -> None:
    topic = bench.topic()
    put(bench, topic, {b"a": b"1", b"b": b"2"})
    read = reader(bench, topic)
    assert len(read.rows()) == 2
    bench.admin.delete_topics([topic])
    with pytest.raises(DoesNotExistError, match=topic):
        read.rows()
    bench.admin.create_topics([NewTopic(topic, 1)])
    put(bench, topic, {b"c": b"3", b"d": b"4", b"e": b"5"})
    assert set(read.rows()) == {b"c", b"d", b"e"}


def test_a_file_of_which_tombstones_may_be_missed_is_read_anew(bench: Bench, disk: Path) -> None:
    topic = bench.topic()
    put(bench, topic, {b"a": b"1"})
    read = reader(bench, topic)
    wait_until(lambda: read.rows() == {b"a": b"1"})  # a busy broker may show the record later
    long_ago = time.time() - 2 * newest_files.OLDEST_S
    os.utime(files(disk)[0], (long_ago, long_ago))
    assert read.rows() == {b"a": b"1"}
    assert read.read_records == 2


# --- In Spark


def streamed(frame: DataFrame, static: DataFrame, checkpoint: Path) -> list[dict[str, object]]:
    """One micro-batch of the stream, joined with the static frames."""
    found: list[dict[str, object]] = []
    query = frame.join(static, "k").writeStream.option("checkpointLocation", str(checkpoint))
    query.foreachBatch(lambda rows, _: found.extend(rows.toArrow().to_pylist())).trigger(
        availableNow=True
    ).start().awaitTermination()
    return found


@pytest.mark.parametrize(
    "bench", [pytest.param("embedded", marks=long_only("the same on a broker")), "kafka"], indirect=True
)
@pytest.mark.parametrize(
    ("schema", "how", "settled"),
    [
        pytest.param("l string", "inner", True, id="schema-settled"),
        pytest.param("l string", "inner", False, id="schema-as it is", marks=long_only("the plain one is in the gate")),
        pytest.param(None, "left", True, id="plain-settled", marks=long_only("one with a schema is in the gate")),
        pytest.param(None, "left", False, id="plain-as it is"),
    ],
)
def test_a_query_that_runs_has_a_static_topic_as_it_is_at_each_micro_batch(
    session: SparkSession, bench: Bench, tmp_path: Path, schema: str | None, how: str, settled: bool
) -> None:
    if bench.log.embedded_file is None and not session.conf.get("spark.jars", ""):
        pytest.skip("there is no Kafka connector")
    given = [f"bootstrap.servers={servers(bench.log)}", f"state.dir={tmp_path}", "pipeline.max.offsets.per.trigger=1"]
    frames = topic_frames(session, load_config("flights", overrides=given), bench.log)
    stream, static = bench.topic(name="stream"), bench.topic(name="static")
    table = Topic(static, serdes.string, serdes.json, schema=schema)
    key = "key" if schema is None else "_key"
    known = frames.static(table).select(F.col(key).alias("k"), F.col("value" if schema is None else "l").alias("found"))
    for _ in range(3):
        put(bench, stream, {b"x": b'{"k": "k"}'})
    found = list[str]()

    def change(value: str) -> None:
        put(bench, static, {b"k": json.dumps(value if schema is None else {"l": value}).encode()})

    def each(rows: DataFrame, number: int) -> None:
        change(f"{number}")
        if settled:
            frames.settle_statics(bench.log, [table])
            change(f"{number}, too late")
        found.extend(row["found"].strip('"') for row in rows.select("found").toArrow().to_pylist())

    asked = frames.stream(Topic(stream, serdes.string, serdes.json, schema="k string"))
    query = asked.join(known, "k", how).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    assert found == ["0", "1", "2"]


@pytest.mark.parametrize(
    "bench",
    ["embedded", pytest.param("kafka", marks=long_only("one static topic is read from a broker"))],
    indirect=True,
)
def test_two_static_topics_are_joined_as_they_are_at_each_micro_batch_and_after_a_restart(
    session: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    if bench.log.embedded_file is None and not session.conf.get("spark.jars", ""):
        pytest.skip("there is no Kafka connector")
    config = load_config("flights", overrides=[f"bootstrap.servers={servers(bench.log)}", f"state.dir={tmp_path}"])
    names = [bench.topic(name=name) for name in ("stream", "left", "right")]
    stream, *statics = [
        Topic(name, serdes.string, serdes.json, schema=f"{column} string")
        for name, column in zip(names, ("k", "l", "r"), strict=True)
    ]
    for run in range(2):  # of a driver: its frames are new
        frames = topic_frames(session, config, bench.log)
        left, right = (frames.static(topic).drop("_timestamp", "_partition", "_offset") for topic in statics)
        table = left.join(right, "_key").withColumnRenamed("_key", "k")
        for batch in long_or_short((0, 1, 2), (0, 2)):
            value = f"{run} {batch}"
            put(bench, names[1], {b"k": json.dumps({"l": value}).encode()})
            put(bench, names[2], {b"k": json.dumps({"r": value}).encode() if batch < 2 else None})
            put(bench, names[0], {b"x": b'{"k": "k"}'})
            rows = streamed(frames.stream(stream), table, tmp_path / "checkpoint")
            assert [(row["l"], row["r"]) for row in rows] == ([(value, value)] if batch < 2 else [])


def test_a_password_is_in_no_plan(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("flights", overrides=["consumer.sasl.password=hidden", "admin.ssl.key.password=hidden"])
    frames = topic_frames(session, config, KafkaLog("127.0.0.1:1"))
    frames.static(Topic("topic", serdes.string, serdes.string)).explain(True)
    said = capsys.readouterr().out
    assert "stateline-followed" in said
    assert "hidden" not in said


@pytest.mark.parametrize("make", [
    lambda path: path.mkdir(mode=0o755),
    lambda path: (path.mkdir(), path.chmod(0o770)),
    lambda path: (path.with_name("elsewhere").mkdir(mode=0o700), path.symlink_to("elsewhere")),
    lambda path: path.touch(mode=0o600),
])  # fmt: skip
def test_a_folder_that_others_could_put_files_into_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="mode 0700"):
        private_folder(tmp_path / "kept")


def test_a_folder_of_an_executor_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            assert stat.S_IMODE(private_folder(tmp_path / "kept").stat().st_mode) == 0o700
    finally:
        os.umask(before)
