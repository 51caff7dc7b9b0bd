"""The sink by itself: micro-batches handed to it as Spark does, on a log that doubts its commits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from service.spark.doubtful_log import DoubtfulLog
from stateline import serdes
from stateline.cli.main import explained
from stateline.deployment.partition_counts import PartitionsChangedError
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.log.kafka import KafkaLog
from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.processes.child import STORES_REFUSED, RestartPolicy
from stateline.spark.drivers.one_pipeline import row_receiver
from stateline.spark.operators.packing import struct_type
from stateline.spark.sink import epoch_writer, large_results, topic_records
from stateline.spark.sink.checkpoint import claim
from stateline.spark.sink.checkpoint_folder import LocalFolder
from stateline.spark.sink.epoch_sink import EpochSink
from stateline.spark.sink.epoch_writer import BatchResult
from stateline.spark.sink.receiving import RowReceiver
from stateline_store import DamagedDataError, NewerFormatError, RecordError, TopicPartition, TopologyError
from support.kafka.shared_broker import SharedBroker
from support.log.log_bench import Bench, drain, until
from support.run.length import long_only

QUERY = "a query"
_QUERY_ID = "sql.streaming.queryId"  # what Spark sets on the thread that calls the sink

COLUMNS = "k string, v string, _t long"
FIXED: dict[str, Any] = {"function": print, "reads": ()}


class Batches:
    """A pipeline's micro-batches, each ending where it says, and a checkpoint that tells so."""

    def __init__(
        self, session: SparkSession, log: Log, topic: str, checkpoint: Path, application: str, **pipeline: Any
    ) -> None:
        writes = Topic(topic, serdes.string, serdes.json)
        self._columns = pipeline.pop("columns", COLUMNS)
        made = Pipeline(**{"name": "p", "key": ("k",), "timestamp": "_t"} | FIXED | pipeline, writes=writes)
        self._session, self._checkpoint = session, checkpoint
        self.sink = EpochSink(log, application, made, LocalFolder(checkpoint), row_receiver(session, checkpoint.parent))
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        try:
            self.sink.open(struct_type(self._columns))
        except BaseException:
            self.sink.close()
            raise

    def write(
        self, batch_id: int, *rows: tuple[Any, ...], end: int | None = None, ends: Mapping[str, int] | None = None
    ) -> BatchResult:
        """Hand over this micro-batch, which ends at `end` (by default at its own number); what it came to. `ends` are
        topics that are read as well → their partitions."""
        also = {topic: dict.fromkeys(map(str, range(count)), 1) for topic, count in (ends or {}).items()}
        offsets = json.dumps({"in": {"0": batch_id if end is None else end, "id": "one"}, **also})
        (self._checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{offsets}")
        frame = self._session.createDataFrame(list(rows), self._columns)
        self.sink(frame, batch_id)
        written = self.sink.written(batch_id)
        assert written is not None
        return written

    def close(self) -> None:
        self.sink.close()


@pytest.fixture
def make(session: SparkSession, tmp_path: Path) -> Iterator[Callable[[Log, str, str], Batches]]:
    """Opens a sink on this log, topic and application, as a driver does at its start."""
    with ExitStack() as stack:
        session.sparkContext.setLocalProperty(_QUERY_ID, QUERY)
        stack.callback(session.sparkContext.setLocalProperty, _QUERY_ID, "")

        def make(log: Log, topic: str, application: str = "app", **pipeline: Any) -> Batches:
            checkpoint = tmp_path / "checkpoint"
            return stack.enter_context(closing(Batches(session, log, topic, checkpoint, application, **pipeline)))

        yield make


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(EmbeddedLog(tmp_path / "log.db"))) as bench:
        yield bench


@pytest.fixture
def on_broker(kafka_broker: SharedBroker) -> Iterator[Bench]:
    with closing(Bench(KafkaLog(kafka_broker.bootstrap_servers))) as bench:
        yield bench


def results(bench: Bench, topic: str) -> list[str]:
    return [json.loads(value or b"")["v"] for value in bench.values(topic)]


Make = Callable[..., Batches]
_ON_BROKER_TOO = long_only("the sink does the same on the embedded log; test_rows_are_deleted_… is on a broker, too")
on_either = pytest.mark.parametrize("log", ["bench", pytest.param("on_broker", marks=_ON_BROKER_TOO)])


@pytest.fixture
def few_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four markers are kept: of two offsets each, the marker and the end of its transaction."""
    for module in (topic_records, epoch_writer):
        monkeypatch.setattr(module, "LOOK_BACK", 8)


@pytest.mark.parametrize("committed", [True, False])
def test_any_commit_in_doubt_is_settled_and_a_replay_right_after_is_dropped(
    make: Make, bench: Bench, tmp_path: Path, committed: bool
) -> None:
    topic = bench.topic()
    log = DoubtfulLog(tmp_path / "log.db", committed=committed, doubted=1)
    batches = make(log, topic)
    for batch_id in range(3):
        batches.write(batch_id, ("k", f"row {batch_id}", 7))
        batches.write(batch_id, ("k", f"replay of {batch_id}", 7))
    assert log.doubts == 1
    assert results(bench, topic) == ["row 0", "row 1", "row 2"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_large_micro_batch_whose_commit_is_in_doubt_is_written_once_and_whole(
    make: Make, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    monkeypatch.setattr(large_results, "PART_BYTES", 10_000)
    topic = bench.topic()
    log = DoubtfulLog(tmp_path / "log.db", committed=committed, doubted=0)
    rows = [(f"k{n % 100}", f"row {n}", n) for n in range(500)]
    assert make(log, topic).write(0, *rows).rows == 500
    assert log.doubts == 1
    found = results(bench, topic)
    assert sorted(found) == sorted(value for _, value, _ in rows)
    for key in range(100):
        mine = [value for name, value, _ in rows if name == f"k{key}"]
        assert [value for value in found if value in mine] == mine, "those of a key in their order"


def test_a_replay_of_an_earlier_batch_is_dropped_and_refused_where_it_ends_elsewhere(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    first = make(bench.log, topic)
    for batch_id in range(3):
        first.write(batch_id, ("k", f"row {batch_id}", 7))
    for batches in (first, make(bench.log, topic)):
        batches.write(1, ("k", "replay", 7))
        with pytest.raises(DamagedDataError, match=r"batch 1.* ends at .*2.* up to .*1.*lost a part"):
            batches.write(1, ("k", "another row", 7), end=2)
    assert results(bench, topic) == ["row 0", "row 1", "row 2"]


@pytest.mark.usefixtures("few_markers")
def test_a_replay_from_before_the_markers_that_are_kept_is_dropped(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    written = make(bench.log, topic)
    for batch_id in range(7):
        written.write(batch_id)
    replayed = make(bench.log, topic)
    replayed.write(0, ("k", "replay", 7), end=5)
    with pytest.raises(DamagedDataError, match="batch 6"):
        replayed.write(6, ("k", "replay", 7), end=5)
    assert results(bench, topic) == []


@pytest.mark.usefixtures("few_markers")
def test_an_old_copy_of_the_checkpoint_that_reads_on_is_refused_at_once(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    written = make(bench.log, topic)
    for batch_id in range(7):
        written.write(batch_id)
    restored = make(bench.log, topic)
    with pytest.raises(DamagedDataError, match=r"batch 1 .*old copy.*Restore the newest"):
        restored.write(1, ("k", "new", 7), end=7)
    assert results(bench, topic) == []


BAD_ROWS = [
    pytest.param(("bad key", "x" * 1_100_000, 7), r"bad key.*larger|bad key.*too large", id="too large"),
    pytest.param(("bad key", "x", -5), r"bad key.*-5 is no timestamp", id="before 1970"),
]


@pytest.mark.parametrize(("row", "says"), BAD_ROWS)
@on_either
def test_a_row_that_the_log_refuses_is_named_and_ends_its_pipeline_alone(
    make: Make, request: pytest.FixtureRequest, log: str, row: tuple[str, str, int], says: str
) -> None:
    bench: Bench = request.getfixturevalue(log)
    topic = bench.topic()
    batches = make(bench.log, topic, bench.id)
    batches.write(0, ("k", "row 0", 7))
    with pytest.raises(RecordError, match=says) as raised:
        batches.write(1, ("k", "fine", 7), row)
    assert f"'p' cannot write micro-batch 1 to '{topic}' because of the row" in str(raised.value)
    assert len(str(raised.value)) < 1000
    _, exit_code = explained(raised.value)
    assert RestartPolicy().ended(exit_code, life_s=20.0) == 0.5  # with any other code than the caller's mistake
    make(bench.log, topic, bench.id).write(1, ("k", "filtered", 7))
    assert results(bench, topic) == ["row 0", "filtered"]


def test_of_rows_that_only_the_broker_refuses_the_largest_is_named(make: Make, on_broker: Bench) -> None:
    topic = on_broker.topic(settings={"max.message.bytes": "500"})
    batches = make(on_broker.log, topic, on_broker.id)
    incompressible = random.Random(1).randbytes(5_000).hex()
    says = rf"'p' cannot write micro-batch 0 to '{topic}'.*the largest being .*'bad key'.*too large.*filter or change"
    with pytest.raises(RecordError, match=says):
        batches.write(0, ("k", "fine", 7), ("bad key", incompressible, 7))
    assert on_broker.values(topic) == []


# --- What the rows say of themselves


def records(bench: Bench, topic: str, partition: int = 0) -> list[tuple[str, str | None]]:
    """(key, value's `v`) of every committed record of a partition; None for a tombstone."""
    place = TopicPartition(topic, partition)
    until(lambda: bench.admin.watermarks(place)[1] == bench.admin.log_end(place))
    read = drain(bench.reader(place), place, bench.admin.log_end(place))
    return [((r.key or b"").decode(), None if r.value is None else json.loads(r.value)["v"]) for r in read]


OWN = "k string, v string, _t long, _deleted boolean, _order long, _topic string"


@pytest.mark.parametrize("log", ["bench", "on_broker"])
@pytest.mark.parametrize("mode", ["update", "append"])
def test_rows_are_deleted_ordered_and_sent_where_they_say(
    make: Make, request: pytest.FixtureRequest, log: str, mode: str
) -> None:
    bench: Bench = request.getfixturevalue(log)
    out, other = bench.topic(), bench.topic(name="other")
    branch = Topic(other, serdes.string, serdes.json)
    batches = make(bench.log, out, bench.id, columns=OWN, output_mode=mode, branches=(branch,))
    written = batches.write(
        0,
        ("a", "third", 7, False, 3, None),
        ("a", "first", 7, None, 1, out),
        ("b", "elsewhere", 7, False, 9, other),
        ("a", "second", 7, True, 2, None),
    )
    assert records(bench, out) == [("a", "first"), ("a", None), ("a", "third")]
    assert records(bench, other) == [("b", "elsewhere")]
    assert (written.rows, written.tombstones) == (4, 1)
    with pytest.raises(RecordError, match=r"_topic is 'nowhere'.*result row .*lost"):
        batches.write(1, ("a", "lost", 7, None, 1, "nowhere"))


def test_a_stream_gets_every_row_also_of_one_key(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    batches = make(bench.log, topic, output_mode="append", result="stream")
    batches.write(0, ("a", "1", 7), ("a", "1", 7))
    batches.write(1, ("a", "1", 7))
    assert records(bench, topic) == [("a", "1")] * 3


# --- Several rows of one key in a micro-batch


@pytest.mark.parametrize("mode", ["update", "append"])
@pytest.mark.parametrize("timestamp", [None, "_t"])
def test_two_rows_of_one_key_that_nothing_tells_apart_are_refused_and_named(
    make: Make, bench: Bench, mode: str, timestamp: str | None
) -> None:
    topic = bench.topic()
    batches = make(bench.log, topic, output_mode=mode, timestamp=timestamp)
    batches.write(0, ("a", "1", 7), ("b", "1", 7))
    says = rf"'p': two rows of one micro-batch have the key b'a' of '{topic}'.*name the column .* in key="
    with pytest.raises(RecordError, match=says):
        batches.write(1, ("a", "2", 7), ("b", "2", 7), ("a", "3", 7))
    assert records(bench, topic) == [("a", "1"), ("b", "1")]


def test_of_rows_that_their_times_tell_apart_the_newest_is_written_last(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    make(bench.log, topic).write(0, ("a", "newest", 9), ("b", "1", 8), ("a", "older", 7))
    assert records(bench, topic) == [("a", "older"), ("b", "1"), ("a", "newest")]


def test_one_key_in_two_topics_is_two_rows(make: Make, bench: Bench) -> None:
    out, other = bench.topic(), bench.topic(name="other")
    branch = Topic(other, serdes.string, serdes.json)
    batches = make(bench.log, out, columns=OWN, branches=(branch,))
    batches.write(0, ("a", "1", 7, None, None, None), ("a", "2", 7, None, None, other))
    assert (records(bench, out), records(bench, other)) == ([("a", "1")], [("a", "2")])
    with pytest.raises(RecordError, match=rf"key b'a' of '{other}' \(.*4.*; .*4.*\)"):
        batches.write(1, ("a", "3", 7, None, None, None), *[("a", "4", 7, None, None, other)] * 2)


@pytest.mark.parametrize("reads", [1, 2])
def test_records_that_are_passed_on_under_their_own_key_are_in_order_of_their_offsets(
    make: Make, bench: Bench, reads: int
) -> None:
    topic, sources = bench.topic(), (Topic("in", serdes.string, serdes.json),) * reads
    of = {"columns": "_key string, v string, _offset long", "key": ("_key",), "timestamp": None, "reads": sources}
    batches = make(bench.log, topic, **of)
    rows = ("a", "newest", 9), ("a", "older", 7)
    if reads == 1:
        batches.write(0, *rows)
        assert records(bench, topic) == [("a", "older"), ("a", "newest")]
    else:
        with pytest.raises(RecordError, match=r"two rows"):  # offsets of two topics say nothing
            batches.write(0, *rows)


# --- Complete mode


@on_either
def test_of_a_complete_result_only_what_differs_is_written_also_after_a_start(
    make: Make, request: pytest.FixtureRequest, log: str
) -> None:
    bench: Bench = request.getfixturevalue(log)
    topic = bench.topic()
    first = make(bench.log, topic, bench.id, output_mode="complete")
    first.write(0, ("a", "1", 7), ("b", "1", 7))
    written = first.write(1, ("b", "2", 7), ("c", "1", 7))
    assert (written.rows, written.tombstones) == (3, 1)
    assert first.write(2, ("b", "2", 7), ("c", "1", 7)).rows == 0
    again = make(bench.log, topic, bench.id, output_mode="complete")
    assert again.write(3, ("b", "2", 7), ("c", "1", 7)).rows == 0
    again.write(4, ("b", "2", 8))  # another time is another record
    again.write(5)
    expected = [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("a", None), ("b", "2"), ("c", None), ("b", None)]
    assert records(bench, topic) == expected


@pytest.mark.parametrize("committed", [True, False])
def test_a_complete_result_in_doubt_counts_as_written_only_when_it_is(
    make: Make, bench: Bench, tmp_path: Path, committed: bool
) -> None:
    topic = bench.topic()
    log = DoubtfulLog(tmp_path / "log.db", committed=committed, doubted=1)
    batches = make(log, topic, output_mode="complete", timestamp=None)
    batches.write(0, ("a", "1", 0), ("b", "1", 0))
    batches.write(1, ("a", "2", 0))
    assert log.doubts == 1
    batches.write(2, ("a", "2", 0), ("b", "1", 0))
    assert records(bench, topic) == [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("b", "1")]


def test_a_refused_micro_batch_is_not_taken_for_the_complete_result(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    batches = make(bench.log, topic, output_mode="complete")
    batches.write(0, ("a", "1", 7))
    with pytest.raises(RecordError, match=r"too large|larger"):
        batches.write(1, ("b", "x" * 1_100_000, 7))
    make(bench.log, topic, output_mode="complete").write(1, ("a", "1", 7), ("b", "2", 7))
    assert records(bench, topic) == [("a", "1"), ("b", "2")]


def test_two_rows_of_one_key_in_a_complete_result_are_refused_and_named(make: Make, bench: Bench) -> None:
    batches = make(bench.log, bench.topic(), output_mode="complete")
    with pytest.raises(RecordError, match=r"two rows of one micro-batch have the key b'a' .*grouped by"):
        batches.write(0, ("a", "1", 7), ("b", "1", 7), ("a", "2", 7))


def test_a_row_without_a_time_is_written_once_while_the_result_stays(make: Make, bench: Bench) -> None:
    batches = make(bench.log, bench.topic(), output_mode="complete")
    assert batches.write(0, ("a", "1", None)).rows == 1
    assert batches.write(1, ("a", "1", None)).rows == 0


# --- What belongs together


def finish(tmp_path: Path, batch_id: int) -> None:
    """Let the checkpoint say, as Spark does, that this micro-batch is finished."""
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(exist_ok=True)
    (commits / str(batch_id)).write_text("v1\n{}")


def test_a_checkpoint_with_batches_beside_an_empty_marker_is_refused(make: Make, bench: Bench, tmp_path: Path) -> None:
    topic = bench.topic()
    make(bench.log, topic).write(0, ("a", "1", 7))
    finish(tmp_path, 0)
    bench.admin.delete_topics(["app-p-epochs"])
    with pytest.raises(TopologyError, match=r"finished micro-batch 0, but no micro-batch .* app-p-epochs.*start over"):
        make(bench.log, topic)


def test_a_checkpoint_that_is_ahead_of_the_marker_is_refused(make: Make, bench: Bench, tmp_path: Path) -> None:
    topic = bench.topic()
    batches = make(bench.log, topic)
    batches.write(0, ("a", "1", 7))
    with pytest.raises(TopologyError, match=r"finished micro-batch 1, but app-p-epochs ends with 0"):
        batches.write(2, ("a", "3", 7))
    finish(tmp_path, 5)
    with pytest.raises(TopologyError, match=r"finished micro-batch 5, but app-p-epochs ends with 0"):
        make(bench.log, topic)
    assert records(bench, topic) == [("a", "1")]


def test_a_checkpoint_whose_newest_plan_is_not_what_was_written_is_refused_at_the_start(
    make: Make, bench: Bench, tmp_path: Path
) -> None:
    """As one that two drivers have written at once; the next micro-batch would begin where nothing has ended."""
    topic = bench.topic()
    batches = make(bench.log, topic)
    batches.write(0, ("a", "1", 7))
    batches.write(1, ("a", "2", 7), end=7)
    plan = tmp_path / "checkpoint" / "offsets" / "1"
    plan.write_text(plan.read_text().replace('"0": 7', '"0": 5'))
    with pytest.raises(DamagedDataError, match="Micro-batch 1 of pipeline 'p' now ends at"):
        make(bench.log, topic)


@pytest.mark.parametrize("other", [{"name": "q"}, {"application": "another"}])
def test_a_checkpoint_copied_from_another_pipeline_or_application_is_refused(
    make: Make, bench: Bench, other: dict[str, str]
) -> None:
    make(bench.log, bench.topic()).write(0, ("a", "1", 7))
    with pytest.raises(TopologyError, match=r"of pipeline 'p' of application 'app', not of .*copied"):
        make(bench.log, bench.topic(name="copy"), **other)


def second(log: Log, application: str, topic: str, checkpoint: Path) -> EpochSink:
    """Another driver's sink of the same pipeline."""
    writes = Topic(topic, serdes.string, serdes.json)
    made = Pipeline(name="p", key=("k",), timestamp="_t", **FIXED, writes=writes)
    return EpochSink(
        log, application, made, LocalFolder(checkpoint), RowReceiver("127.0.0.1", "127.0.0.1", checkpoint.parent)
    )


@on_either
def test_a_driver_that_is_refused_leaves_the_one_that_runs_alone(
    make: Make, tmp_path: Path, log: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue(log)
    topic = bench.topic()
    running = make(bench.log, topic, bench.id)
    running.write(0, ("a", "1", 7))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "metadata").write_text('{"id": "another query"}')
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "metadata").write_text(json.dumps({"id": QUERY}))
    (copied / "stateline.json").write_text(json.dumps({"application": bench.id, "pipeline": "another"}))
    for checkpoint, says in ((tmp_path / "empty", "is gone"), (foreign, "another query"), (copied, "copied")):
        with closing(second(bench.log, bench.id, topic, checkpoint)) as other, pytest.raises(TopologyError, match=says):
            other.open(struct_type(COLUMNS))
    running.write(1, ("a", "2", 8))
    assert records(bench, topic) == [("a", "1"), ("a", "2")]


class ChangingLog(EmbeddedLog):
    """Something happens to it right before a producer is made."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None
    ) -> EmbeddedProducer:
        self.before()
        return super().producer(transactional_id, transaction_timeout_ms=transaction_timeout_ms)


def test_what_another_driver_writes_after_the_first_look_is_seen_by_the_second(
    make: Make, bench: Bench, tmp_path: Path
) -> None:
    topic = bench.topic()
    running = make(bench.log, topic)
    log = ChangingLog(tmp_path / "log.db")
    log.before = lambda: running.write(0, ("a", "1", 7))
    with closing(second(log, "app", topic, tmp_path / "empty")) as other, pytest.raises(TopologyError, match="is gone"):
        other.open(struct_type(COLUMNS))


def test_a_marker_whose_transaction_is_about_to_be_committed_is_waited_for(
    make: Make, bench: Bench, tmp_path: Path
) -> None:
    topic = bench.topic()
    make(bench.log, topic)
    finish(tmp_path, 0)
    with closing(bench.log.producer("app-p")) as former:
        former.init_transactions()
        former.begin_transaction()
        marker = EpochMarker(QUERY, 0, (), 0, {topic: bench.admin.topics()[topic].topic_id}).encode()
        former.produce("app-p-epochs", b"p", marker, timestamp_ms=1, partition=0)
        former.flush()
        log = ChangingLog(tmp_path / "log.db")
        log.before = former.commit_transaction
        make(log, topic)


def test_a_result_topic_made_anew_is_refused(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    make(bench.log, topic).write(0, ("a", "1", 7))
    bench.admin.delete_topics([topic])
    bench.topic()
    with pytest.raises(TopologyError, match=r"deleted and created again.*written again, delete the checkpoint"):
        make(bench.log, topic)


def test_another_result_topic_is_refused(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    make(bench.log, topic).write(0, ("a", "1", 7))
    with pytest.raises(TopologyError, match=rf"written to {topic} so far, and now writes to 'other-"):
        make(bench.log, bench.topic(name="other"))


def test_a_pipeline_that_is_declared_otherwise_is_refused_once_a_micro_batch_of_it_is_written(
    make: Make, bench: Bench, tmp_path: Path
) -> None:
    topic = bench.topic()
    make(bench.log, topic, key=("v",))
    make(bench.log, topic).write(0, ("a", "1", 7))  # nothing was written before
    with pytest.raises(
        TopologyError, match=r'changed since .*key was \["k"\] and is \["v"\].*code back; or .*app-p-epo'
    ):
        make(bench.log, topic, key=("v",))
    kept = tmp_path / "checkpoint" / "declaration.json"
    kept.unlink()  # as the message says of a damaged one
    make(bench.log, topic, key=("v",))
    assert json.loads(kept.read_text())["key"] == ["v"]


def grown(log: KafkaLog, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": log.bootstrap_servers})
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result()
    with closing(log.admin()) as admin:
        until(lambda: admin.topics()[topic].partitions == partitions)


def test_topics_whose_keys_a_pipeline_knows_may_not_get_partitions(
    make: Make, on_broker: Bench, tmp_path: Path
) -> None:
    log, (topic, result, stream) = on_broker.log, (on_broker.topic(name=name) for name in ("table", "out", "in"))
    assert isinstance(log, KafkaLog)
    table, read = Topic(topic, serdes.string, serdes.json), Topic(stream, serdes.string, serdes.json)
    given: dict[str, Any] = {"application": result, "tables": (table,), "reads": (read,)}
    batches = make(log, result, **given)
    batches.write(0, ("a", "1", 7))
    kept = tmp_path / "checkpoint" / "declaration.json"
    counted = json.loads(kept.read_text())["topics"]
    assert {name: each["partitions"] for name, each in counted.items()} == {topic: 1, result: 1}
    grown(log, stream, 2)
    grown(log, topic, 2)
    said = f"Topic {topic} has 2 partitions, and had 1 when pipeline 'p' began: a key would be in two .* application.id"
    for start in (lambda: make(log, result, **given), lambda: batches.write(1, ("a", "2", 8), ends={topic: 2})):
        with pytest.raises(PartitionsChangedError, match=said) as caught:
            start()
        assert explained(caught.value)[1] == STORES_REFUSED
    assert results(on_broker, result) == ["1"]
    kept.unlink()
    make(log, result, **given)  # nothing says what was counted: what there is now is taken
    grown(log, result, 2)
    with pytest.raises(PartitionsChangedError, match=f"Topic {result} has 2 .*, and had 1 .*, {result} .stateline"):
        make(log, result, **given)
    make(log, result, **given, result="stream")  # of which no key is kept


def test_a_checkpoint_that_a_newer_version_claimed_is_not_taken_for_a_copied_one(tmp_path: Path) -> None:
    (tmp_path / "stateline.json").write_text('{"application": "app", "pipeline": "p", "cluster": "c"}')
    with pytest.raises(NewerFormatError, match=r"stateline\.json has members \['cluster'\]"):
        claim(LocalFolder(tmp_path), "app", "p")


@pytest.mark.parametrize(("kept", "error"), [('{"version":2}', NewerFormatError), ("{", DamagedDataError)])
def test_a_declaration_that_cannot_be_read_is_refused_and_stays(
    make: Make, bench: Bench, tmp_path: Path, kept: str, error: type[Exception]
) -> None:
    topic = bench.topic()
    make(bench.log, topic).write(0, ("a", "1", 7))
    path = tmp_path / "checkpoint" / "declaration.json"
    path.write_text(kept)
    with pytest.raises(error, match=r"declaration\.json"):
        make(bench.log, topic)
    assert path.read_text() == kept


def test_a_replay_with_another_number_of_rows_is_told_of_and_dropped(
    make: Make, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    topic = bench.topic()
    batches = make(bench.log, topic)
    batches.write(0, ("a", "1", 7))
    assert batches.write(0, ("a", "1", 7), ("b", "1", 7)).rows == 0
    assert "micro-batch 0 is written with 1 rows, and computed again has 2" in caplog.text
    assert records(bench, topic) == [("a", "1")]


# --- Whole epochs


@on_either
def test_the_marker_of_a_whole_epoch_says_where_all_partitions_end(
    make: Make, request: pytest.FixtureRequest, log: str
) -> None:
    bench: Bench = request.getfixturevalue(log)
    topic = bench.topic(partitions=2)
    batches = make(bench.log, topic, bench.id, whole_epochs=True)
    batches.write(0, *((str(key), "1", 7) for key in range(8)))
    batches.write(1, ("1", "2", 7))
    batches.write(2)
    make(bench.log, topic, bench.id, whole_epochs=True).write(3, ("2", "2", 7))
    ends = [EpochMarker.decode(value or b"").result_ends for value in bench.values(f"{bench.id}-p-epochs")]
    places = [TopicPartition(topic, number) for number in range(2)]
    newest = [drain(bench.reader(place), place, bench.admin.log_end(place))[-1] for place in places]
    assert ends[-1] == {topic: {str(record.partition): record.offset for record in newest}}
    assert ends[1] == ends[2]
    assert all(end is not None and set(end[topic]) == {"0", "1"} for end in ends)


def test_a_pipeline_that_is_asked_for_whole_epochs_later_says_at_once_where_all_so_far_ends(
    make: Make, bench: Bench
) -> None:
    topic = bench.topic()
    make(bench.log, topic, bench.id).write(0, ("a", "1", 7), ("b", "1", 7))
    later = make(bench.log, topic, bench.id, whole_epochs=True)
    markers = [EpochMarker.decode(value or b"") for value in bench.values(f"{bench.id}-p-epochs")]
    assert [marker.batch_id for marker in markers] == [0, 0]
    place = TopicPartition(topic, 0)
    last = bench.admin.log_end(place) - 1
    assert [marker.result_ends for marker in markers] == [None, {topic: {"0": last}}]
    later.write(0, ("a", "replay", 7), ("b", "1", 7))
    later.write(1, ("a", "2", 7))
    assert results(bench, topic) == ["1", "1", "2"]
