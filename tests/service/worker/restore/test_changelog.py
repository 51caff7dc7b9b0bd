"""What a commit writes to a changelog is what a restore reads back."""

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline.log import Log, Record
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_consumer import EmbeddedConsumer
from stateline.processing.changelog import (
    end_of_last_commit,
    position_headers,
    position_of_changelog,
    position_of_input,
    stage,
)
from stateline.processing.changelog_rows import staged_rows
from stateline.worker.restore.changelog_follower import ChangelogFollower
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyValueStore,
    LogUnavailableError,
    NewerFormatError,
    Position,
    StatelineError,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
)
from support.processes.running_worker import create, produce, read_all

NOW = 1_700_000_000_000
AT_7 = Position.of({TopicPartition("in", 0): 7})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(EmbeddedLog(tmp_path / "log.db")) as made:
        create(made, {"log": 1})
        yield made


def changes_of(store: KeyValueStore, log: Log) -> list[Record]:
    """The records that the next commit writes to a changelog."""
    with closing(log.producer()) as producer:
        headers = position_headers(store.position(IsolationLevel.READ_UNCOMMITTED))
        producer.produce_all("log", 0, staged_rows(store, NOW), headers)
        producer.flush()
    return read_all(log, "log", 1)


@pytest.fixture
def timestamped(tmp_path: Path) -> Iterator[TimestampedKeyValueStore]:
    store = TimestampedKeyValueStore("s", persistent=False)
    store.init(StoreContext("0_0", tmp_path))
    yield store
    store.close()


def test_a_changed_key_is_written_once_with_its_plain_value_and_its_own_timestamp(
    timestamped: TimestampedKeyValueStore, log: Log
) -> None:
    timestamped.put_with_timestamp(b"b", b"1", 5)
    timestamped.put_with_timestamp(b"a", b"2", 6)
    timestamped.put_with_timestamp(b"b", b"3", 7)
    timestamped.put_with_timestamp(b"c", None, 8)
    written = [(change.key, change.value, change.timestamp_ms) for change in changes_of(timestamped, log)]
    assert written == [(b"a", b"2", 6), (b"b", b"3", 7), (b"c", None, NOW)]


def test_only_the_last_record_of_a_commit_carries_the_position_and_a_restore_finds_it(
    timestamped: TimestampedKeyValueStore, log: Log
) -> None:
    timestamped.put_with_timestamp(b"a", b"1", 5)
    timestamped.put_with_timestamp(b"b", b"2", 6)
    timestamped.advance(AT_7)
    first, last = changes_of(timestamped, log)
    assert not first.headers
    assert dict(last.headers) == {"v": b"\x00", "c": AT_7.encode()}
    records = [Record("log", 0, 0, 0, b"a", b"1", ()), Record("log", 0, 1, 0, b"b", b"2", last.headers)]
    assert position_of_changelog(records) == AT_7
    assert position_of_changelog(records[:1]) == Position()


def test_a_commit_ends_with_the_record_that_carries_the_position() -> None:
    end = (("v", b"\x00"), ("c", AT_7.encode()))
    commits = [((), 0), (end, 2), ((), 2), (end, 4), ((), 4), ((("other", b"x"),), 4)]
    records = [Record("log", 0, offset, 0, b"a", b"1", headers) for offset, (headers, _) in enumerate(commits)]
    found = [end_of_last_commit(records[: count + 1]) for count in range(len(records))]
    assert found == [whole for _, whole in commits]
    assert end_of_last_commit([]) == 0


@pytest.mark.parametrize(
    ("header", "error", "where"),
    [(b"\x00\xff", DamagedDataError, "log-0 offset 3"), (b"\x09", NewerFormatError, "log-0 at offset 3")],
)
def test_a_header_that_is_no_position_names_the_record(header: bytes, error: type[StatelineError], where: str) -> None:
    with pytest.raises(error, match=where):
        position_of_changelog([Record("log", 0, 3, 0, b"a", b"1", (("v", b"\0"), ("c", header)))])


def test_restored_records_are_what_was_written_and_the_newest_of_a_key_wins(
    timestamped: TimestampedKeyValueStore, tmp_path: Path
) -> None:
    records = [
        Record("log", 0, 0, 5, b"a", b"1"),
        Record("log", 0, 1, 6, b"b", b""),
        Record("log", 0, 2, 7, b"a", None),
        Record("log", 0, 3, 8, None, b"no key"),
    ]
    stage(timestamped, records)
    assert dict(timestamped.staged()) == {b"a": None, b"b": struct.pack(">q", 6)}
    plain = KeyValueStore("p", persistent=False)
    plain.init(StoreContext("0_0", tmp_path))
    stage(plain, records)
    assert dict(plain.staged()) == {b"a": None, b"b": b""}
    assert [at for _, _, at in staged_rows(plain, NOW)] == [NOW, NOW]
    plain.close()


def test_the_position_of_input_is_its_last_offset() -> None:
    records = [Record("in", 0, 6, 0, b"a", b""), Record("in", 0, 7, 0, b"a", b"")]
    assert position_of_input(records) == AT_7


def test_the_store_that_is_furthest_behind_decides_where_a_shared_topic_is_read(log: Log) -> None:
    produce(log, "log", [(b"k", b"%d" % n, NOW) for n in range(9)])
    place = TopicPartition("log", 0)
    for offsets in ([7, 4], [4, 7]):
        starts = [(place, at) for at in offsets]
        with closing(ChangelogFollower(log, starts.copy)) as follower:
            follower.change()
            assert [record.offset for record in follower.poll()[place]] == [4, 5, 6, 7, 8]


def test_a_follower_is_closed_although_its_consumer_has_something_to_say_and_reads_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, close = TopicPartition("log", 0), EmbeddedConsumer.close

    def close_and_say(consumer: EmbeddedConsumer) -> None:
        close(consumer)
        raise LogUnavailableError("another partition of it is silent")

    monkeypatch.setattr(EmbeddedConsumer, "close", close_and_say)
    produce(log, "log", [(b"a", b"1", NOW)])
    follower = ChangelogFollower(log, lambda: [(place, 0)])
    for _ in range(2):
        follower.change()
        assert [record.offset for record in follower.poll()[place]] == [0]
        follower.close()
