"""What only the embedded log has: its file, its processes, its clock."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline.log import NewTopic, embedded_producer, open_log
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_file import LogFile
from stateline.log.embedded_group import assign
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.log.interface import OffsetNote
from stateline_store import (
    ConfigurationError,
    DamagedDataError,
    DoesNotExistError,
    FencedError,
    InvalidArgumentError,
    LogUnavailableError,
    NewerFormatError,
    TopicPartition,
)
from support.log.log_bench import Bench, drain, until
from support.run.patience import HANGING_S

_PROCESS = """
import sys, time
from stateline.log import NewTopic, open_log
from stateline.log.embedded import EmbeddedLog
name, path = sys.argv[1:3]
log = EmbeddedLog(path, transaction_timeout_ms=60_000)
log.admin().create_topics([NewTopic("t", 2)])
"""
_WRITER = (
    _PROCESS
    + """
producer = log.producer()
for i in range(3000):
    producer.produce("t", name.encode(), b"%d" % i, timestamp_ms=i)
producer.flush()
"""
)
_VICTIM = (
    _PROCESS
    + """
producer = log.producer("x")
producer.init_transactions()
for value in (b"committed", b"open"):
    producer.begin_transaction()
    producer.produce("t", None, value, timestamp_ms=1, partition=0)
    producer.flush()
    if value == b"committed":
        producer.commit_transaction()
print("ready", flush=True)
time.sleep(60)
"""
)


def _start(code: str, name: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, name, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(EmbeddedLog(tmp_path / "log.db", transaction_timeout_ms=200))
    yield bench
    bench.close()


def test_processes_that_create_and_write_one_log_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.db"
    names = [f"writer-{i}" for i in range(4)]
    processes = [_start(_WRITER, name, path) for name in names]
    assert [process.wait(HANGING_S) for process in processes] == [0] * 4
    bench = Bench(EmbeddedLog(path))
    places = [TopicPartition("t", partition) for partition in (0, 1)]
    records = [r for place in places for r in drain(bench.reader(place), place, bench.end(place))]
    assert [r.offset for r in records] == [i for place in places for i in range(bench.end(place))]
    for name in names:
        assert [r.value for r in records if r.key == name.encode()] == [b"%d" % i for i in range(3000)]
    bench.close()


def test_a_file_that_another_process_makes_meanwhile_is_taken_as_it_is_then(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    class SlowFile(LogFile):
        def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
            found = super().rows(query, parameters)
            LogFile(path, 5000)
            return found

    assert SlowFile(path, 5000).rows("SELECT count(*) FROM records") == [(0,)]


def test_a_process_opens_a_second_log_as_the_first(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with closing(open_log("embedded", tmp_path / name)) as log:
            assert log.embedded_file == tmp_path / name / "log.db"


def test_a_killed_process_leaves_what_it_committed_and_nothing_of_its_open_transaction(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    victim = _start(_VICTIM, "victim", path)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    bench = Bench(EmbeddedLog(path))
    bench.write("t", b"after")
    assert bench.admin.watermarks(TopicPartition("t", 0)) == (0, 2)
    bench.log.producer("x").init_transactions()
    assert bench.values("t") == [b"committed", b"after"]
    bench.close()


def test_a_transaction_left_open_is_aborted_by_its_timeout_and_its_producer_fenced(embedded: Bench) -> None:
    topic = embedded.topic()
    producer, place = embedded.producer("x"), TopicPartition(topic, 0)
    producer.begin_transaction()
    producer.produce(topic, None, b"open", timestamp_ms=1, partition=0)
    producer.flush()
    embedded.write(topic, b"after")
    reader = embedded.reader(place)
    until(lambda: [r.value for r in reader.poll(10, 0.05)] == [b"after"])
    with pytest.raises(FencedError):
        producer.commit_transaction()


def test_a_record_that_is_too_large_is_refused_with_its_size_the_limit_and_what_to_do(embedded: Bench) -> None:
    topic, producer = embedded.topic(), embedded.producer()
    producer.produce(topic, b"k", bytes(embedded_producer.MAX_MESSAGE_BYTES - 1), timestamp_ms=1)
    with pytest.raises(InvalidArgumentError, match=r"too large: it has 1048589 .* takes 1048588\. .*Apache Kafka"):
        producer.produce(topic, b"k", bytes(embedded_producer.MAX_MESSAGE_BYTES), timestamp_ms=1)


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_larger_than_memory_is_written_in_parts_and_seen_whole_or_not_at_all(
    embedded: Bench, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    monkeypatch.setattr(embedded_producer, "TRANSACTION_BYTES", 10_000)
    topic = embedded.topic()
    producer, values = embedded.producer("x"), [b"%d" % n for n in range(500)]
    assert isinstance(producer, EmbeddedProducer)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, None, value, timestamp_ms=1, partition=0)
        assert len(producer._queued.get((topic, 0), [])) <= 50
    reader = embedded.reader(TopicPartition(topic, 0))
    assert reader.poll(1_000, 0.05) == []
    if commits:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    embedded.write(topic, b"after")
    assert embedded.values(topic) == [*(values if commits else []), b"after"]


def test_a_silent_member_loses_its_partitions_and_its_commits_are_fenced(tmp_path: Path) -> None:
    bench = Bench(EmbeddedLog(tmp_path / "log.db", session_timeout_ms=1000))
    topic = bench.topic(2)
    silent = bench.member("g", topic)
    until(lambda: len(silent.owned) == 2, silent)
    other = bench.member("g", topic)
    until(lambda: len(other.owned) == 2, other)
    with pytest.raises(FencedError):
        silent.consumer.commit({TopicPartition(topic, 0): 1})
    until(lambda: len(silent.owned) == 1 and len(other.owned) == 1, silent, other)
    assert silent.events[1] == ("revoked", frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)}))
    bench.close()


def test_a_log_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    EmbeddedLog(path).close()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(NewerFormatError, match=r"log\.db has version 2; .* reads up to 1"):
        EmbeddedLog(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_log_is_damaged_data(tmp_path: Path) -> None:
    text, database = tmp_path / "text.db", tmp_path / "other.db"
    text.write_bytes(b"not a database at all " * 100)
    sqlite3.connect(database).execute("CREATE TABLE mine (x)")
    for path in (text, database):
        with pytest.raises(DamagedDataError, match=path.name):
            EmbeddedLog(path)


def test_a_log_that_cannot_be_opened_or_stays_locked_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path.name} cannot be written"):
        EmbeddedLog(tmp_path)  # a folder: waiting cannot help
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailableError, match="file"):
        EmbeddedLog(tmp_path / "file" / "log.db")
    path = tmp_path / "log.db"
    log = EmbeddedLog(path, busy_timeout_ms=50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogUnavailableError, match=r"log\.db.*locked"):
        log.admin().create_topics([NewTopic("t", 1)])
    other.execute("ROLLBACK")
    log.admin().create_topics([NewTopic("t", 1)])


def test_records_of_a_deleted_topic_are_told_and_others_still_written(embedded: Bench) -> None:
    gone, kept = embedded.topic(name="gone"), embedded.topic(name="kept")
    producer = embedded.producer()
    producer.produce(gone, None, b"", timestamp_ms=1)
    producer.flush()
    embedded.admin.delete_topics([gone])
    producer.produce(gone, None, b"", timestamp_ms=1)
    producer.produce(kept, None, b"kept", timestamp_ms=1)
    with pytest.raises(DoesNotExistError):
        producer.flush()
    producer.flush()
    assert embedded.values(kept) == [b"kept"]


def test_assignments_are_balanced_co_located_and_move_as_little_as_needed() -> None:
    topics = {"a": 6, "b": 6, "single": 1, "other": 1}
    members = {name: list(topics) for name in ("m1", "m2")}
    before = assign(members, topics, {})
    assert len(before) == 14
    assert all(before[TopicPartition("a", n)] == before[TopicPartition("b", n)] for n in range(6))
    assert Counter(before.values()) == {"m1": 7, "m2": 7} or set(Counter(before.values()).values()) == {6, 8}
    after = assign({**members, "m3": list(topics)}, topics, before)
    numbers = [TopicPartition("a", n) for n in range(6)]
    assert sorted(Counter(after[n] for n in numbers).values()) == [2, 2, 2]
    assert sum(after[n] != before[n] for n in numbers) == 2
    assert assign(members, topics, before) == before
    assert set(assign({"m2": list(topics)}, topics, after).values()) == {"m2"}
    assert assign({}, topics, after) == {}


def test_a_topic_that_is_deleted_leaves_nothing_of_its_partitions_in_the_file(tmp_path: Path) -> None:
    with closing(EmbeddedLog(tmp_path / "log.db")) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("t", 1)])
        place = TopicPartition("t", 0)
        with closing(log.producer("writer")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for _ in range(3):
                producer.produce("t", b"k", b"v", timestamp_ms=1)
            producer.commit_transaction()
        admin.delete_records({place: 2})
        with closing(log.consumer("group")) as consumer:
            consumer.subscribe(["t"], lambda _: None, lambda _: None)
            assert consumer.poll(10, HANGING_S)
            consumer.commit({place: 3}, {place: OffsetNote(1, "parts")})
            admin.delete_topics(["t"])
            with closing(sqlite3.connect(tmp_path / "log.db")) as file:
                tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                kept = {t for t in tables if "partition_id" in {c[1] for c in file.execute(f"PRAGMA table_info({t})")}}
                assert kept >= {"assignments", "group_offsets", "open_ranges"}
                for table in (*kept, "records", "partitions", "topics", "topic_settings"):
                    assert file.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)], table


def test_few_records_of_a_partition_are_deleted_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writes = LogFile.write, list[LogFile]()

    def noted(file: LogFile) -> Any:
        writes.append(file)
        return write(file)

    with closing(EmbeddedLog(tmp_path / "log.db")) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("t", 1)])
        with closing(log.producer()) as producer:
            for _ in range(3):
                producer.produce("t", b"k", b"v", timestamp_ms=1)
            producer.flush()
        monkeypatch.setattr(LogFile, "write", noted)
        admin.delete_records({TopicPartition("t", 0): 2})
        assert len(writes) == 1
        assert admin.bounds([TopicPartition("t", 0)]) == {TopicPartition("t", 0): (2, 3)}
        monkeypatch.setattr("stateline.log.embedded._DELETE_AT_ONCE", 1)
        admin.delete_records({TopicPartition("t", 0): 3})
    with closing(sqlite3.connect(tmp_path / "log.db")) as file:
        assert file.execute("SELECT count(*) FROM records").fetchall() == [(0,)]
