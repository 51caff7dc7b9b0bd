"""The sink by itself: micro-batches handed to it as Spark does, on a log that doubts its commits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_broker import KafkaBroker
from log_bench import Bench
from service.spark.doubtful_log import DoubtfulLog
from stateline import serdes
from stateline.cli import explained
from stateline.log import EmbeddedLog, KafkaLog, Log
from stateline.spark.sink import EpochSink
from stateline.supervisor import RestartPolicy
from stateline.topology import Pipeline, Topic
from stateline_store import DamagedDataError, RecordError

QUERY = "a query"
_QUERY_ID = "sql.streaming.queryId"  # what Spark sets on the thread that calls the sink

Rows = list[tuple[str, str, int]]  # key, value, timestamp in milliseconds


class Batches:
    """A pipeline's micro-batches, each ending where it says, and a checkpoint that tells so."""

    def __init__(self, session: SparkSession, log: Log, topic: str, checkpoint: Path, application: str) -> None:
        writes = Topic(topic, serdes.string, serdes.json)
        pipeline = Pipeline("p", print, (), writes, ("k",), timestamp="_t")
        self._session, self._checkpoint = session, checkpoint
        self._sink = EpochSink(log, application, pipeline, checkpoint)
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        self._sink.open(["k", "v", "_t"])

    def write(self, batch_id: int, *rows: tuple[str, str, int], end: str | None = None) -> None:
        """Hand over this micro-batch, which ends at `end` (by default at its own number)."""
        (self._checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{end or batch_id}")
        frame = self._session.createDataFrame(list(rows), "k string, v string, _t long")
        self._sink(frame, batch_id)

    def close(self) -> None:
        self._sink.close()


@pytest.fixture
def make(session: SparkSession, tmp_path: Path) -> Iterator[Callable[[Log, str, str], Batches]]:
    """Opens a sink on this log, topic and application, as a driver does at its start."""
    with ExitStack() as stack:
        session.sparkContext.setLocalProperty(_QUERY_ID, QUERY)
        stack.callback(session.sparkContext.setLocalProperty, _QUERY_ID, "")

        def make(log: Log, topic: str, application: str = "app") -> Batches:
            return stack.enter_context(closing(Batches(session, log, topic, tmp_path / "checkpoint", application)))

        yield make


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(EmbeddedLog(tmp_path / "log.db"))) as bench:
        yield bench


@pytest.fixture
def on_broker(kafka_broker: KafkaBroker) -> Iterator[Bench]:
    with closing(Bench(KafkaLog(kafka_broker.bootstrap_servers))) as bench:
        yield bench


def results(bench: Bench, topic: str) -> list[str]:
    return [json.loads(value or b"")["v"] for value in bench.values(topic)]


Make = Callable[..., Batches]


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


def test_a_replay_of_an_earlier_batch_is_dropped_and_refused_where_it_ends_elsewhere(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    first = make(bench.log, topic)
    for batch_id in range(3):
        first.write(batch_id, ("k", f"row {batch_id}", 7))
    for batches in (first, make(bench.log, topic)):
        batches.write(1, ("k", "replay", 7))
        with pytest.raises(DamagedDataError, match=r"batch 1.* ends at elsewhere.* up to 1.*lost a part"):
            batches.write(1, ("k", "another row", 7), end="elsewhere")
    assert results(bench, topic) == ["row 0", "row 1", "row 2"]


def test_a_replay_from_before_the_markers_that_are_kept_is_dropped(make: Make, bench: Bench) -> None:
    topic = bench.topic()
    written = make(bench.log, topic)
    for batch_id in range(40):  # two offsets each: its marker and the end of its transaction
        written.write(batch_id)
    replayed = make(bench.log, topic)
    replayed.write(0, ("k", "replay", 7), end="elsewhere")
    with pytest.raises(DamagedDataError, match="batch 39"):
        replayed.write(39, ("k", "replay", 7), end="elsewhere")
    assert results(bench, topic) == []


BAD_ROWS = [
    pytest.param(("bad key", "x" * 1_100_000, 7), r"bad key.*larger|bad key.*too large", id="too large"),
    pytest.param(("bad key", "x", -5), r"bad key.*since 1970, not -5", id="before 1970"),
]


@pytest.mark.parametrize(("row", "says"), BAD_ROWS)
@pytest.mark.parametrize("log", ["bench", "on_broker"])
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
