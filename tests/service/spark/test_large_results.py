"""Micro-batches larger than what is in memory at once: their records are those of small ones, key by key."""

from __future__ import annotations

import pickle
import random
import socket
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateline import serdes
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log, embedded_producer
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import Pipeline, Windowing
from stateline.model.topic import Topic
from stateline.spark.sink import large_results, receiving, strangers
from stateline.spark.sink.encoding import encoded_rows
from stateline.spark.sink.epoch_writer import EpochRows, EpochWriter, StepClock, TransactionTimeouts
from stateline.spark.sink.large_results import LargeResult, records_of
from stateline.spark.sink.receiving import EncodedRows, RowFile, RowReceiver
from stateline.spark.sink.result_records import ENCODED, RecordParts, result_records
from stateline.spark.sink.sending import WELCOME, SendRows, Sent, for_executors
from stateline_store import (
    ConfigurationError,
    DamagedDataError,
    FencedError,
    RecordError,
    RetryLaterError,
    TopicPartition,
)
from support.log.log_bench import Bench
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

TOPICS = {"out": 4, "branch": 2}
TABLE = Pipeline(
    "p",
    print,
    (),
    Topic("out", serdes.string, serdes.json),
    ("k",),
    timestamp="_t",
    branches=(Topic("branch", serdes.string, serdes.json),),
)
STREAM = replace(TABLE, result="stream")
WINDOWS = replace(
    TABLE,
    writes=Topic("out", serdes.windowed(serdes.string), serdes.json),
    windowing=Windowing("window", "w", 60_000),
    branches=(),
)


def batch_of(rows: Sequence[dict[str, Any]], *names: str) -> pa.RecordBatch:
    kinds = {
        "k": pa.string(),
        "v": pa.string(),
        "_t": pa.int64(),
        "_order": pa.int64(),
        "_topic": pa.string(),
        "w": pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))]),
    }
    return pa.RecordBatch.from_pylist(rows, pa.schema([(name, kinds[name]) for name in names]))


def results(seed: int, *, is_ordered: bool = False) -> list[pa.RecordBatch]:
    """Rows of few keys, so that all have several; no two of one key and time."""
    chance = random.Random(seed)
    times = chance.sample(range(1, 10_000), 900)
    rows = [
        {
            "k": f"k{chance.randrange(40)}",
            "v": f"value {n}",
            "_t": times[n],
            "_order": chance.randrange(5) if is_ordered else None,
            "_topic": chance.choice(["out", "branch"]),
        }
        for n in range(900)
    ]
    names = ("k", "v", "_t", "_topic", *(["_order"] if is_ordered else []))
    return [batch_of(rows[at : at + 50], *names) for at in range(0, 900, 50)]


def windows() -> list[pa.RecordBatch]:
    rows = [
        {"k": f"k{n % 7}", "v": "x", "_t": n, "w": {"start": n * 60_000_000, "end": (n + 1) * 60_000_000}}
        for n in range(200)
    ]
    return [batch_of(rows, "k", "v", "_t", "w")]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RowReceiver]:
    with closing(RowReceiver("127.0.0.1", "127.0.0.1", tmp_path)) as receiver:
        yield receiver


def sent(receiver: RowReceiver, pipeline: Pipeline, *tasks: Sequence[pa.RecordBatch]) -> list[Sent]:
    """These tasks send their rows."""
    send = SendRows(receiver.address, receiver.begin(), pipeline)
    return [Sent(**row) for task in tasks for batch in send(iter(task)) for row in batch.to_pylist()]


def received(receiver: RowReceiver, pipeline: Pipeline, *tasks: Sequence[pa.RecordBatch]) -> EncodedRows:
    return receiver.take(sent(receiver, pipeline, *tasks))


def by_key(records: Any) -> dict[tuple[str, bytes], list[RecordParts]]:
    found = defaultdict(list)
    for record in records:
        found[record[0], record[1]].append(tuple(record))
    return dict(found)


@pytest.mark.parametrize("part_bytes", [3_000, 20_000])
@pytest.mark.parametrize(
    ("pipeline", "given"),
    [
        (TABLE, results(1)),
        (TABLE, results(2, is_ordered=True)),
        (STREAM, results(3)),
        (STREAM, results(4, is_ordered=True)),
        (WINDOWS, windows()),
    ],
    ids=["table", "ordered table", "stream", "ordered stream", "windows"],
)
def test_the_records_of_a_key_are_those_of_a_small_micro_batch_in_their_order_each_time(
    receiver: RowReceiver,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: Pipeline,
    given: list[pa.RecordBatch],
    part_bytes: int,
) -> None:
    monkeypatch.setattr(large_results, "PART_BYTES", part_bytes)
    monkeypatch.setattr(receiving, "_IN_MEMORY_BYTES", 1_000)
    whole = pa.Table.from_batches([encoded_rows(batch, pipeline) for batch in given], ENCODED)
    expected = list(result_records(whole, pipeline, 99, TOPICS))
    with closing(received(receiver, pipeline, given[:7], [], given[7:])) as rows:
        records = records_of(rows, pipeline, 99, TOPICS)
        assert isinstance(records, LargeResult)
        assert len(records) == len(expected)
        for _ in range(2):
            assert by_key(records) == by_key(expected)
        if pipeline is STREAM and not rows.is_ordered:
            assert list(records) == expected, "as they came"


def test_two_rows_of_a_key_that_nothing_tells_apart_are_refused_before_anything_is_written(
    receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_results, "PART_BYTES", 1_000)
    given = results(5)
    twice = batch_of([{"k": "k1", "v": v, "_t": 7, "_topic": "out"} for v in ("a", "b")], "k", "v", "_t", "_topic")
    with (
        closing(received(receiver, TABLE, [*given, twice])) as rows,
        pytest.raises(RecordError, match=r"two rows of one micro-batch have the key b'k1' of 'out'"),
    ):
        records_of(rows, TABLE, 99, TOPICS)


@pytest.mark.parametrize("part_bytes", [1, 10**9])
def test_a_row_that_cannot_become_a_record_is_refused_and_named(
    receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(large_results, "PART_BYTES", part_bytes)
    bad = batch_of([{"k": None, "v": "this one", "_t": 7, "_topic": "out"}], "k", "v", "_t", "_topic")
    with (
        closing(received(receiver, TABLE, results(6), [bad])) as rows,
        pytest.raises(RecordError, match=r"the key column 'k' is null in the result row .*this one"),
    ):
        records_of(rows, TABLE, 99, TOPICS)


def test_of_a_task_that_was_computed_again_the_rows_count_once(receiver: RowReceiver) -> None:
    first, second, *_ = results(7)
    send = SendRows(receiver.address, receiver.begin(), STREAM)
    lost = [Sent(**row) for batch in send(iter([first])) for row in batch.to_pylist()]
    again = [Sent(**row) for batch in send(iter([first])) for row in batch.to_pylist()]
    other = [Sent(**row) for batch in send(iter([second])) for row in batch.to_pylist()]
    assert lost[0].name != again[0].name
    with closing(receiver.take([*again, *other])) as rows:
        assert rows.count == sum(len(batch) for batch in rows.batches()) == 100
    assert receiver.files == {}


def test_who_does_not_know_the_micro_batchs_token_is_not_listened_to(receiver: RowReceiver) -> None:
    old = SendRows(receiver.address, receiver.begin(), STREAM)
    receiver.begin()
    with pytest.raises((RetryLaterError, OSError)):
        list(old(iter(results(8))))
    with socket.create_connection(receiver.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert receiver.files == {}


def test_strangers_have_no_threads_and_a_bounded_number_and_time(
    receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 8)

    def threads() -> int:
        return sum(getattr(thread, "_target", None) == receiver._serve for thread in threading.enumerate())

    with ExitStack() as open_ones:
        silent = [open_ones.enter_context(socket.create_connection(receiver.address)) for _ in range(100)]
        for connection in silent[:-8]:
            connection.settimeout(HANGING_S)
            assert connection.recv(1) == b"", "a later one has its place"
        assert threads() == 0
        with closing(received(receiver, STREAM, results(9)[:1])) as rows:
            assert rows.count == 50


def test_a_stranger_that_sends_its_head_byte_by_byte_is_hung_up_on(
    receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "HEAD_TIMEOUT_S", 0.2)
    token, sent_bytes = receiver.begin(), 0
    with socket.create_connection(receiver.address) as slow, suppress(ConnectionError):
        slow.settimeout(0.05)
        while True:
            slow.sendall(token[sent_bytes % 32 : sent_bytes % 32 + 1] if sent_bytes < 40 else b"")
            sent_bytes += 1
            with suppress(TimeoutError):
                assert slow.recv(1) == b""
                break
    assert receiver.files == {}


def test_a_task_that_breaks_off_has_sent_nothing_that_counts(receiver: RowReceiver) -> None:
    token = receiver.begin()
    with socket.create_connection(receiver.address) as task:
        task.sendall(token + b"n" * 16 + b"half of a stream")
        task.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a killed one
    send = SendRows(receiver.address, token, STREAM)
    given = [Sent(**row) for batch in send(iter(results(9)[:1])) for row in batch.to_pylist()]
    with closing(receiver.take(given)) as rows:
        assert rows.count == 50


def test_where_the_disk_is_full_the_driver_says_so(receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: RowFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    given = results(10)
    send = SendRows(receiver.address, receiver.begin(), STREAM)
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    with pytest.raises((RetryLaterError, OSError)):
        list(send(iter(given)))
    wait_until(lambda: receiver.failure is not None)
    with pytest.raises(RetryLaterError, match=r"No space left on device.*Make room"):
        receiver.check()


def test_rows_are_read_again_from_the_beginning(tmp_path: Path) -> None:
    with closing(RowFile(tmp_path)) as file:
        with file.writer() as writer:
            for batch in results(11):
                writer.write_batch(encoded_rows(batch, STREAM))
        reading = file.batches()
        next(reading)
        assert sum(len(batch) for batch in file.batches()) == 900


def test_who_cannot_be_listened_to_for_a_moment_is_heard_then(
    receiver: RowReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[str]()
    start = threading.Thread.start

    def start_none(thread: threading.Thread) -> None:
        if len(refused) < 3 and getattr(thread, "_target", None) == receiver._serve:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_none)
    send = SendRows(receiver.address, receiver.begin(), STREAM)
    for _ in range(3):
        with pytest.raises((RetryLaterError, OSError)):
            list(send(iter(results(12)[:1])))
    given = [Sent(**row) for batch in send(iter(results(12)[:1])) for row in batch.to_pylist()]
    with closing(receiver.take(given)) as rows:
        assert rows.count == 50
    assert len(refused) == 3


def test_rows_that_are_not_as_many_as_were_sent_are_not_taken_for_the_result(receiver: RowReceiver) -> None:
    given = sent(receiver, STREAM, results(13)[:2])
    with (
        closing(receiver.take([given[0]._replace(rows=101)])) as rows,
        pytest.raises(DamagedDataError, match="100 rows"),
    ):
        records_of(rows, STREAM, 99, TOPICS)


def test_of_a_task_of_an_earlier_micro_batch_that_ends_only_now_nothing_is_kept(receiver: RowReceiver) -> None:
    token, name = receiver.begin(), b"n" * 16
    with socket.create_connection(receiver.address) as late:
        late.sendall(token + name)
        assert late.recv(1) == WELCOME
        receiver.begin()
        late.shutdown(socket.SHUT_WR)
        assert late.recv(1) == b""
    assert receiver.files == {}


def test_of_several_receivers_each_has_one_of_the_ports_that_were_named(tmp_path: Path) -> None:
    first = free_port()
    with (
        closing(RowReceiver("127.0.0.1", "127.0.0.1", tmp_path, port=first)) as one,
        closing(RowReceiver("127.0.0.1", "127.0.0.1", tmp_path, port=first)) as other,
    ):
        assert first <= one.address[1] < other.address[1] < first + 16
    with pytest.raises(ConfigurationError, match=r"203\.0\.113\.1.*spark\.driver\.bindAddress"):
        RowReceiver("203.0.113.1", "driver", tmp_path)


def test_executors_get_nothing_of_a_pipeline_that_may_not_be_one_to_pickle() -> None:
    class Locked:
        """A serde that cannot be pickled."""

        name = "locked"

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def serialize(self, value: Any) -> bytes:
            return bytes(value)

        def deserialize(self, data: bytes) -> Any:
            return data

    serde: Any = Locked()
    locked = Topic("in", serde, serde)
    pickle.dumps(for_executors(replace(TABLE, reads=(locked,), static=(locked,), function=lambda frame: frame)))


class LaterThanIsAllowed(list[RecordParts]):
    """Records of which the second comes when a reader has found that their transaction was open for too long."""

    def __init__(self, records: Iterable[RecordParts], log: Log) -> None:
        super().__init__(records)
        self._log = log

    def __iter__(self) -> Iterator[RecordParts]:
        first, *others = super().__iter__()
        yield first
        time.sleep(0.6)
        with closing(self._log.consumer()) as consumer:
            consumer.assign({TopicPartition(first[0], 0): 0})
            assert consumer.poll(10, 0.0) == []
        yield from others


@pytest.mark.parametrize(("owns", "error"), [(True, RetryLaterError), (False, FencedError)])
def test_a_micro_batch_that_takes_longer_than_a_transaction_may_is_not_taken_for_another_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owns: bool, error: type[Exception]
) -> None:
    monkeypatch.setattr(embedded_producer, "TRANSACTION_BYTES", 1)
    with closing(Bench(EmbeddedLog(tmp_path / "log.db"))) as bench:
        topic, may_write = bench.topic(), [True]
        writer = EpochWriter(bench.log, "app", TABLE, lambda: may_write[0], TransactionTimeouts(500, 500))
        with closing(bench.log.admin()) as admin:
            writer.create_topic(admin, {})
        writer.take_over()
        records = LaterThanIsAllowed(((topic, b"k%d" % n, b"v", 1, None) for n in range(10)), bench.log)
        epoch = EpochRows(records, [], EpochMarker("query", 0, (), 0, {}))
        may_write[0] = owns
        with pytest.raises(error) as refused:
            writer.write(epoch, StepClock(0.0))
        assert ("ends a transaction after 0.5 s" in str(refused.value)) == owns
        assert bench.values(topic) == []
        writer.close()


def test_a_transaction_gets_as_long_as_its_rows_need_and_no_longer_than_may_be(tmp_path: Path) -> None:
    asked = list[int | None]()

    class Noting(EmbeddedLog):
        def producer(self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None) -> Any:
            asked.append(transaction_timeout_ms)
            if transaction_timeout_ms == 900_000:
                raise ConfigurationError("at most 300,000 are allowed")
            return super().producer(transactional_id, transaction_timeout_ms=transaction_timeout_ms)

    def epoch(rows: int, size_bytes: int) -> EpochRows:
        return EpochRows(range(rows), [], EpochMarker("query", 0, (), 0, {}), size_bytes)  # type: ignore[arg-type]

    log = Noting(tmp_path / "log.db")
    with closing(EpochWriter(log, "app", TABLE, timeouts=TransactionTimeouts(60_000, 900_000))) as writer:
        with closing(log.admin()) as admin:
            writer.create_topic(admin, {})
        writer.take_over()
        assert writer.is_ready_for(epoch(1_000_000, 10**8))
        for large in (epoch(2_400_000, 10**8), epoch(10, 2 * 10**9)):
            assert not writer.is_ready_for(large)
            writer.take_over(large)
            assert writer.is_ready_for(large)
        writer.take_over(epoch(100_000_000, 10**10))  # the brokers refuse it, so it is tried as usual
        assert writer.is_ready_for(epoch(100_000_000, 10**10))
    assert asked == [60_000, 120_000, 200_000, 900_000, 60_000]
