"""What Spark may read of the embedded log, asked of the source as Spark asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.spark.sources.embedded_offsets import OffsetsJson
from stateline.spark.sources.embedded_source import EmbeddedLogReader, EmbeddedLogStreamReader, Slice, shared_out
from stateline_store import DoesNotExistError
from support.log.log_bench import Bench

ALL = ReadAllAvailable()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(EmbeddedLog(path))
    yield bench
    bench.close()


def stream(path: Path, topics: str) -> EmbeddedLogStreamReader:
    return EmbeddedLogStreamReader({"path": str(path), "subscribe": topics})


def values(reader: EmbeddedLogStreamReader, start: OffsetsJson, end: OffsetsJson) -> list[bytes]:
    slices = reader.partitions(start, end)
    return [value for each in slices for batch in reader.read(each) for value in batch.column("value").to_pylist()]


def everything(path: Path, topic: str) -> list[bytes]:
    reader = EmbeddedLogReader({"path": str(path), "subscribe": topic})
    slices = reader.partitions()
    return [value for each in slices for batch in reader.read(each) for value in batch.column("value").to_pylist()]


def make_anew(bench: Bench, topic: str, *written: bytes) -> None:
    bench.admin.delete_topics([topic])
    bench.admin.create_topics([NewTopic(topic, 1)])
    bench.write(topic, *written)


def test_what_is_not_committed_is_read_by_neither_streams_nor_batches(bench: Bench, path: Path) -> None:
    topic, producer = bench.topic(), bench.producer("x")
    bench.write(topic, b"before")
    producer.begin_transaction()
    producer.produce(topic, None, b"open", timestamp_ms=7, partition=0)
    producer.flush()
    bench.write(topic, b"after")
    reader = stream(path, topic)
    reached = reader.latestOffset({}, ALL)
    assert values(reader, {}, reached) == everything(path, topic) == [b"before"]
    assert reader.reportLatestOffset() == reached
    producer.commit_transaction()
    end = reader.latestOffset(reached, ALL)
    assert values(reader, reached, end) == [b"open", b"after"]
    assert everything(path, topic) == [b"before", b"open", b"after"]


def test_a_stream_that_reads_what_was_there_at_its_start_stops_before_an_open_transaction(
    bench: Bench, path: Path
) -> None:
    topic, producer = bench.topic(), bench.producer("x")
    bench.write(topic, b"before")
    producer.begin_transaction()
    producer.produce(topic, None, b"open", timestamp_ms=7, partition=0)
    producer.flush()
    reader = stream(path, topic)
    reader.prepareForTriggerAvailableNow()
    producer.commit_transaction()
    assert values(reader, {}, reader.latestOffset({}, ALL)) == [b"before"]


@pytest.mark.parametrize("written", [[], [b"new"], [b"new"] * 3, [b"new"] * 5])
def test_a_topic_that_was_made_anew_ends_the_query_however_long_it_is(
    bench: Bench, path: Path, written: list[bytes]
) -> None:
    topic = bench.topic()
    bench.write(topic, b"a", b"b", b"c")
    reader = stream(path, topic)
    read = reader.latestOffset({}, ALL)
    make_anew(bench, topic, *written)
    for ask in (lambda: reader.latestOffset(read, ALL), lambda: reader.partitions({}, read)):
        with pytest.raises(DoesNotExistError, match=rf"{topic}.*created again.*delete the pipeline's checkpoint"):
            ask()


def test_a_topic_made_anew_of_which_nothing_was_read_is_read_from_its_start(bench: Bench, path: Path) -> None:
    read_topic, empty = bench.topic(name="read"), bench.topic(name="empty")
    bench.write(read_topic, b"a")
    reader = stream(path, f"{read_topic},{empty}")
    read = reader.latestOffset({}, ALL)
    make_anew(bench, empty, b"new")
    assert values(reader, read, reader.latestOffset(read, ALL)) == [b"new"]


def test_small_slices_share_a_task_and_large_ones_have_one_each() -> None:
    sizes = [3, 4_000, 5_997, 1, 10_000, 50_000, 2, 2]
    pieces = [Slice("t", number, number, 7, 7 + size) for number, size in enumerate(sizes)]
    tasks = shared_out(pieces)
    assert [[piece.end - piece.first for piece in task.pieces] for task in tasks] == [
        [3, 4_000, 5_997],
        [1],
        [10_000],
        [50_000],
        [2, 2],
    ]
    assert [piece for task in tasks for piece in task.pieces] == pieces
