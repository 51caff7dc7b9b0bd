"""What every versioned store does, in RocksDB and in memory, at both isolation levels.

The cases are those of Kafka Streams' `RocksDBVersionedStoreTest`; times are relative to S, where a segment begins.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from stateline_store import (
    NOT_PUT,
    Change,
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    SecondaryReader,
    StoreClosedError,
    StoreContext,
    TopicPartition,
    VersionedReads,
    VersionedRecord,
    VersionedStore,
    notice_path,
    store_path,
)
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.versioned_rows import LATEST
from stateline_store.stores.versioned_store import default_segment_interval_ms

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)
RETENTION = 300_000
S = 100_000
Valid = tuple[bytes, int, int | None] | None  # value, timestamp, end of a version; None when none is valid
Puts = list[tuple[bytes | None, int, int | None]]  # value, timestamp, the validity's end that `put` returns


class Subject:
    """A store, read at one isolation level: a READ_COMMITTED one commits before each read."""

    def __init__(self, store: VersionedStore, level: IsolationLevel) -> None:
        self.store = store
        self.level = level

    @property
    def reads(self) -> VersionedReads:
        if self.level is COMMITTED:
            self.store.commit({})
        return VersionedReads(self.store.reader(self.level), self.store.segments)

    def put(self, *puts: tuple[bytes | None, int, int | None], key: bytes = b"k") -> None:
        for value, timestamp, valid_to in puts:
            assert self.store.put(key, value, timestamp) == valid_to

    def restore(self, *puts: tuple[bytes | None, int]) -> None:
        self.store.restore((b"k", value, timestamp) for value, timestamp in puts)

    def as_of(self, time: int, key: bytes = b"k") -> Valid:
        return self.reads.get_as_of(key, time)

    def latest(self, key: bytes = b"k") -> tuple[bytes, int] | None:
        found = self.reads.get(key)
        assert found is None or found.valid_to is None
        return found and found[:2]

    def versions(self, start: int | None, end: int | None, key: bytes = b"k") -> list[VersionedRecord]:
        newest_first = list(self.reads.get_versions(key, start, end))
        assert list(self.reads.get_versions(key, start, end, ascending=True)) == newest_first[::-1]
        return newest_first

    def holds(self, history: Mapping[int, Valid]) -> None:
        """Time → what is valid then."""
        assert {time: self.as_of(time) for time in history} == history


def valid(value: bytes | None, timestamp: int) -> Valid:
    return None if value is None else (value, timestamp, None)


def make(*, retention: int = RETENTION, persistent: bool = False) -> VersionedStore:
    return VersionedStore("s", history_retention_ms=retention, segment_interval_ms=S, persistent=persistent)


@pytest.fixture(params=[True, False], ids=["rocksdb", "memory"])
def persistent(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def store(persistent: bool, context: StoreContext) -> Iterator[VersionedStore]:
    store = make(persistent=persistent)
    store.init(context)
    yield store
    store.close()


@pytest.fixture(params=[(COMMITTED, 32), (UNCOMMITTED, 32), (UNCOMMITTED, 0)])
def subject(store: VersionedStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Subject:
    level, look_ups = request.param
    monkeypatch.setattr("stateline_store.reads.versioned_reads._MOST_LOOK_UPS", look_ups)
    return Subject(store, level)


# -- puts -----------------------------------------------------------------------------------------------


def test_a_newer_version_ends_the_one_before(subject: Subject) -> None:
    subject.put((b"v", 10, None), (b"v2", 11, None))
    assert subject.latest() == (b"v2", 11)
    subject.holds({9: None, 10: (b"v", 10, 11), 11: (b"v2", 11, None), 12: (b"v2", 11, None)})


def test_tombstones_alone_hold_no_version(subject: Subject) -> None:
    subject.put((None, 10, None), (None, 11, None))
    assert subject.latest() is None
    subject.holds({10: None, 11: None, 12: None})


def test_late_puts_find_their_place_below_a_value(subject: Subject) -> None:
    subject.put((b"v", 10, None), (b"v2", 8, 10), (b"v1", 9, 10), (b"v4", 6, 8))
    assert subject.latest() == (b"v", 10)
    subject.holds({10: (b"v", 10, None), 9: (b"v1", 9, 10), 8: (b"v2", 8, 9), 7: (b"v4", 6, 8), 5: None})


def test_late_puts_find_their_place_below_a_tombstone(subject: Subject) -> None:
    subject.put((None, 10, None), (b"v2", 8, 10), (b"v1", 9, 10), (b"v4", 6, 8))
    assert subject.latest() is None
    subject.holds({10: None, 9: (b"v1", 9, 10), 8: (b"v2", 8, 9), 7: (b"v4", 6, 8)})


@pytest.mark.parametrize("latest", [b"v", None])
def test_late_tombstones_end_what_was_valid(subject: Subject, latest: bytes | None) -> None:
    subject.put((latest, 10, None), (None, 8, 10), (None, 9, 10), (None, 6, 8))
    subject.put((b"v5", 5, 6), (b"v3", 7, 8), (None, 4, 5))
    assert subject.latest() == (latest and (latest, 10))
    subject.holds({10: valid(latest, 10), 9: None, 8: None, 7: (b"v3", 7, 8), 6: None})
    subject.holds({5: (b"v5", 5, 6), 4: None})


def test_a_put_with_the_timestamp_of_the_latest_replaces_it(subject: Subject) -> None:
    for value in (b"replaced", b"b", None, None, b"b"):
        subject.put((value, 10, None))
        assert subject.latest() == (value and (value, 10))
        subject.holds({9: None, 10: valid(value, 10), 11: valid(value, 10)})


def test_a_tombstone_over_the_latest_value_hides_older_puts_that_come_after_it(subject: Subject) -> None:
    """Kafka Streams forgets this tombstone: the older value becomes the latest there."""
    subject.put((b"v", 50, None), (None, 50, None), (b"older", 40, 50))
    assert subject.latest() is None
    subject.holds({40: (b"older", 40, 50), 50: None})


def test_a_tombstone_after_a_tombstone_ends_what_is_put_before_it(subject: Subject) -> None:
    subject.put((b"v", 5, None), (None, 10, None), (None, 15, None), (b"late", 12, 15))
    assert subject.latest() is None
    subject.holds({9: (b"v", 5, 10), 11: None, 14: (b"late", 12, 15), 15: None})


REPEATED: Puts = [
    (b"replaced", S + 20, None),
    (None, S - 10, S + 20),
    (b"replaced", S - 10, S + 20),
    (None, S - 10, S + 20),
    (b"replaced", S - 1, S + 20),
    (b"replaced", S + 1, S + 20),
    (None, S - 1, S + 1),
    (None, S + 1, S + 20),
    (None, S + 10, S + 20),
    (None, S + 5, S + 10),
    (b"vp5", S + 5, S + 10),
    (b"replaced", S - 5, S - 1),
    (b"vn5", S - 5, S - 1),
    (None, S + 20, None),
    (None, S + 20, None),
    (b"vn6", S - 6, S - 5),
]
WITH_NULLS: Puts = [
    (None, S + 20, None),
    (None, S - 1, S + 20),
    (None, S + 1, S + 20),
    (None, S - 10, S - 1),
    (None, S + 10, S + 20),
    (b"vp5", S + 5, S + 10),
    (b"vn5", S - 5, S - 1),
    (b"vn6", S - 6, S - 5),
]
MOVED: Puts = [
    (b"vp20", S + 20, None),
    (b"vp10", S + 10, S + 20),
    (b"vn10", S - 10, S + 10),
    (b"vn2", S - 2, S + 10),
    (b"vn1", S - 1, S + 10),
    (b"vp1", S + 1, S + 10),
]
SEVERAL: Puts = [
    (None, S - 20, None),
    (b"vn10", S - 10, None),
    (None, S - 1, None),
    (None, S + 1, None),
    (b"vp10", S + 10, None),
    (None, S + 20, None),
]


def holds_nulls(subject: Subject) -> None:
    assert subject.latest() is None
    subject.holds({S + 30: None, S + 15: None, S + 6: (b"vp5", S + 5, S + 10), S + 2: None, S: None, S - 1: None})
    subject.holds({S - 5: (b"vn5", S - 5, S - 1), S - 6: (b"vn6", S - 6, S - 5), S - 8: None})


def holds_moved(subject: Subject) -> None:
    assert subject.latest() == (b"vp20", S + 20)
    subject.holds({S + 30: (b"vp20", S + 20, None), S + 15: (b"vp10", S + 10, S + 20), S + 5: (b"vp1", S + 1, S + 10)})
    subject.holds({S: (b"vn1", S - 1, S + 1), S - 1: (b"vn1", S - 1, S + 1), S - 2: (b"vn2", S - 2, S - 1)})
    subject.holds({S - 5: (b"vn10", S - 10, S - 2), S - 11: None})


def holds_several(subject: Subject) -> None:
    assert subject.latest() is None
    subject.holds({S + 30: None, S + 15: (b"vp10", S + 10, S + 20), S + 5: None, S + 2: None, S: None, S - 1: None})
    subject.holds({S - 5: (b"vn10", S - 10, S - 1), S - 15: None})


def test_a_put_with_the_timestamp_of_any_version_replaces_it(subject: Subject) -> None:
    subject.put(*REPEATED)
    holds_nulls(subject)


def test_versions_lie_in_the_segment_in_which_they_end(subject: Subject) -> None:
    subject.put(*SEVERAL)
    holds_several(subject)


def test_a_late_put_moves_the_version_that_it_ends_to_an_older_segment(subject: Subject) -> None:
    subject.put(*MOVED)
    holds_moved(subject)


def test_a_late_put_moves_a_tombstone_to_an_older_segment(subject: Subject) -> None:
    subject.put(*WITH_NULLS)
    holds_nulls(subject)


def test_a_late_put_becomes_the_newest_of_an_older_segment(subject: Subject) -> None:
    subject.put((None, S - 5, None), (b"vn6", S - 6, S - 5), (b"vp20", S + 20, None), (None, S + 10, S + 20))
    subject.put((None, S - 1, S + 10), (b"vn2", S - 2, S - 1))
    assert subject.latest() == (b"vp20", S + 20)
    subject.holds({S + 30: (b"vp20", S + 20, None), S + 12: None, S: None, S - 1: None})
    subject.holds({S - 2: (b"vn2", S - 2, S - 1), S - 5: None, S - 6: (b"vn6", S - 6, S - 5)})


def test_a_late_tombstone_opens_a_new_segment(subject: Subject) -> None:
    subject.put((b"vp30", S + 30, None), (None, S - 10, S + 30), (b"vn5", S - 5, S + 30), (b"vn1", S - 1, S + 30))
    subject.put((None, S - 2, S - 1))
    assert subject.latest() == (b"vp30", S + 30)
    subject.holds({S + 10: (b"vn1", S - 1, S + 30), S - 1: (b"vn1", S - 1, S + 30), S - 2: None})
    subject.holds({S - 5: (b"vn5", S - 5, S - 2), S - 10: None})


def test_empty_bytes_are_a_value_and_an_empty_key_is_a_key(subject: Subject) -> None:
    subject.put((None, S + 20, None), (None, S - 10, S + 20), (None, S - 1, S + 20), (None, S + 1, S + 20), key=b"")
    subject.put((None, S + 10, S + 20), (b"", S + 5, S + 10), (b"", S - 5, S - 1), (b"", S - 6, S - 5), key=b"")
    assert subject.latest(b"") is None
    assert [subject.as_of(S + at, b"") for at in (30, 15, 2, 0, -1, -8)] == [None] * 6
    assert subject.as_of(S + 6, b"") == (b"", S + 5, S + 10)
    assert subject.as_of(S - 5, b"") == (b"", S - 5, S - 1)
    assert subject.as_of(S - 6, b"") == (b"", S - 6, S - 5)
    subject.put((b"", S + 20, None), key=b"")
    assert subject.latest(b"") == (b"", S + 20)


def test_a_delete_returns_what_was_valid_then(subject: Subject) -> None:
    subject.put((b"vp20", S + 20, None), (b"vp10", S + 10, S + 20), (b"vn10", S - 10, S + 10), (b"vn2", S - 2, S + 10))
    assert subject.store.delete(b"k", S - 5) == (b"vn10", S - 10, S - 2)
    assert subject.store.delete(b"k", S + 10) == (b"vp10", S + 10, S + 20)
    assert subject.store.delete(b"k", S + 10) is None
    assert subject.store.delete(b"k", S + 25) == (b"vp20", S + 20, None)
    assert subject.latest() is None
    subject.holds({S - 5: None, S - 6: (b"vn10", S - 10, S - 5), S + 10: None, S + 24: (b"vp20", S + 20, S + 25)})


@pytest.mark.parametrize(
    "wrong", [(b"k", b"v", -1), (b"k", b"v", 1.5), ("k", b"v", 1), (b"k", "v", 1), (b"k", b"v", 2**63)]
)
def test_what_is_no_version_is_refused_and_nothing_is_staged(
    store: VersionedStore, wrong: tuple[bytes, bytes, int]
) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put(*wrong)
    with pytest.raises(InvalidArgumentError):
        store.restore([wrong])
    assert (store.staged_records, store.approximate_num_uncommitted_bytes, store.stream_time_ms) == (0, 0, -1)


# -- grace and history ----------------------------------------------------------------------------------


def test_an_expired_put_is_dropped_and_counted(subject: Subject) -> None:
    subject.put((b"v", RETENTION + 10, None))
    subject.put((b"v1", 10, None), key=b"k1")
    assert subject.latest(b"k1") == (b"v1", 10)
    before = subject.store.staged_records
    subject.put((b"v2", 9, NOT_PUT), key=b"k2")
    assert subject.latest(b"k2") is None
    assert (subject.store.dropped_records, subject.store.stream_time_ms) == (1, RETENTION + 10)
    assert subject.store.staged_records <= before


def test_what_was_dropped_is_counted_anew_when_a_store_is_opened_again(
    store: VersionedStore, context: StoreContext
) -> None:
    store.put(b"k", b"v", 2 * RETENTION)
    store.put(b"k", b"late", 0)
    store.close()
    store.init(context)
    assert store.dropped_records == 0


def test_an_expired_delete_is_dropped_and_counted(subject: Subject) -> None:
    subject.put((b"v1", 1, None), key=b"k1")
    subject.put((b"v2", 1, None), key=b"k2")
    subject.put((b"other", RETENTION + 10, None), key=b"ko")
    assert subject.store.delete(b"k1", 10) == (b"v1", 1, None)
    assert subject.latest(b"k1") is None
    assert subject.store.delete(b"k2", 9) is None
    assert subject.latest(b"k2") == (b"v2", 1)
    assert subject.store.dropped_records == 1


def test_segments_without_the_key_are_passed_over(subject: Subject) -> None:
    subject.put((None, S - 10, None), (None, 2 * S - 10, None), (None, 3 * S - 10, None), key=b"ko")
    assert subject.as_of(S - 20) is None
    subject.put((b"v", S - 20, None), (None, S - 10, None))
    expected = {S - 30: None, S - 15: (b"v", S - 20, S - 10), S - 5: None}
    subject.holds(expected)
    subject.put((b"v2", 3 * S - 20, None), (None, 3 * S - 10, None))
    subject.holds(expected)


def test_history_ends_with_the_retention_to_the_millisecond(subject: Subject) -> None:
    subject.put((b"old", 0, None), (b"v", S - 10, None))
    old = VersionedRecord(b"old", 0, S - 10)
    assert (subject.as_of(S - 11), subject.versions(0, S - 11)) == (old, [old])
    subject.put((b"o", RETENTION + S - 11, None), key=b"ko")
    assert (subject.as_of(S - 11), subject.versions(0, S - 11)) == (old, [old])
    assert subject.versions(None, None) == [(b"v", S - 10, None), old]
    subject.put((b"o", RETENTION + S - 10, None), key=b"ko")
    assert (subject.as_of(S - 11), subject.versions(0, S - 11)) == (None, [])
    assert subject.versions(None, None) == [(b"v", S - 10, None)]  # its segment is still there


def test_a_latest_value_never_expires(subject: Subject) -> None:
    subject.put((b"v", 1, None))
    subject.put((b"old", 1, None), (b"new", RETENTION + 12, None), key=b"ko")
    assert subject.latest() == (b"v", 1)
    assert subject.as_of(10) == (b"v", 1, None)
    assert subject.versions(0, 10) == [(b"v", 1, None)]
    assert subject.as_of(0) is None
    assert subject.as_of(10, b"ko") is None
    assert subject.versions(0, 10, b"ko") == []


def test_a_latest_value_survives_the_range_delete_of_its_time(subject: Subject) -> None:
    subject.put((b"a", 1, None), (b"b", 2, None), (b"v", 3, None))
    subject.put((b"o", 10 * RETENTION, None), key=b"ko")
    subject.store.commit({})
    assert subject.versions(None, None) == [(b"v", 3, None)]
    with subject.store.reader(COMMITTED).range(None, None) as rows:
        assert [key for key, _ in rows] == [LATEST + b"k", LATEST + b"ko"]
    subject.put((b"w", 10 * RETENTION, None))
    subject.holds({10 * RETENTION - 1: (b"v", 3, 10 * RETENTION), 10 * RETENTION: (b"w", 10 * RETENTION, None)})


def test_a_store_without_history_keeps_the_latest(persistent: bool, context: StoreContext) -> None:
    store = make(retention=0, persistent=persistent)
    store.init(context)
    subject = Subject(store, UNCOMMITTED)
    subject.put((b"v", 10, None))
    subject.holds({9: None, 10: (b"v", 10, None), 11: (b"v", 10, None)})
    subject.put((b"updated", 10, None))
    subject.holds({10: (b"updated", 10, None)})
    subject.put((b"v2", 12, None))
    subject.holds({11: None, 12: (b"v2", 12, None)})
    assert subject.versions(None, None) == [(b"v2", 12, None)]
    assert store.delete(b"k", 13) == (b"v2", 12, None)
    assert subject.latest() is None
    subject.put((b"v", 12, NOT_PUT), key=b"k2")
    assert (subject.latest(b"k2"), store.dropped_records) == (None, 1)
    store.close()


def test_stream_time_survives_a_reopening_and_goes_back_with_a_rollback(
    store: VersionedStore, context: StoreContext
) -> None:
    store.put(b"k", b"v", 50)
    store.commit({})
    store.put(b"k", b"w", RETENTION + 51)
    assert store.put(b"k", b"late", 50) == NOT_PUT
    store.rollback()
    assert store.stream_time_ms == 50
    assert store.put(b"k", b"x", 49) == 50
    store.close()
    store.init(context)
    assert store.stream_time_ms == (50 if store.persistent else -1)


# -- ranges of versions ---------------------------------------------------------------------------------


def test_versions_are_found_by_the_time_in_which_they_were_valid(subject: Subject) -> None:
    subject.put((None, S - 10, None), (None, 2 * S - 10, None), (None, 3 * S - 10, None), key=b"ko")
    assert subject.versions(S - 20, S) == []
    subject.put((b"v1", S - 30, None), (b"v2", S - 25, None), (None, S - 20, None), (None, S - 15, None))
    subject.put((b"v3", S - 10, None), (b"v4", S - 5, None))
    v1, v2 = VersionedRecord(b"v1", S - 30, S - 25), VersionedRecord(b"v2", S - 25, S - 20)
    v3, v4 = VersionedRecord(b"v3", S - 10, S - 5), VersionedRecord(b"v4", S - 5, None)
    assert subject.versions(S - 40, S - 35) == []
    assert subject.versions(S - 30, S - 5) == [v4, v3, v2, v1]
    assert subject.versions(None, None) == [v4, v3, v2, v1]
    for time in (S - 5, S - 4):
        assert subject.versions(time, time) == [v4]
    assert subject.versions(S - 4, S) == [v4]
    assert subject.versions(S - 31, S - 21) == [v2, v1]
    for start in (S - 25, S - 24):
        assert subject.versions(start, S - 11) == [v2]
    assert subject.versions(S - 11, S - 4) == [v4, v3]
    assert subject.versions(S - 26, S - 5) == [v4, v3, v2, v1]
    assert subject.versions(S - 15, S - 10) == [v3]
    assert subject.versions(S - 19, S - 16) == []
    subject.put((b"v5", 3 * S - 30, None), (None, 3 * S - 20, None))
    assert subject.versions(S - 40, S - 35) == []
    assert subject.versions(S - 30, S - 26) == [v1]
    assert subject.versions(S - 19, S - 16) == []


def test_versions_of_several_segments_come_in_either_order(subject: Subject) -> None:
    subject.put((b"v1", S - 10, None), (b"v2", S - 5, None), (b"v3", 2 * S - 10, None), (b"v4", 2 * S - 5, None))
    assert [version.value for version in subject.versions(None, None)] == [b"v4", b"v3", b"v2", b"v1"]
    assert [version.valid_to for version in subject.versions(None, None)] == [None, 2 * S - 5, 2 * S - 10, S - 5]


def test_a_version_that_ends_in_a_later_segment_is_found(subject: Subject) -> None:
    """Kafka Streams looks no further than the segment of the upper bound, and misses it."""
    subject.put((b"v", S - 10, None), (b"w", 2 * S + 1, None))
    assert subject.versions(S - 10, S - 5) == [(b"v", S - 10, 2 * S + 1)]


def test_from_above_to_finds_nothing(subject: Subject) -> None:
    subject.put((b"v", 1, None), (b"w", 10, None))
    assert subject.versions(12, 11) == subject.versions(5, 4) == []


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_scan_of_versions_is_a_snapshot(subject: Subject, end: str) -> None:
    subject.put((b"v1", 1, None), (b"v2", 2, None), (b"v3", S + 3, None))
    expected = subject.versions(None, None)
    scan = subject.reads.get_versions(b"k")
    first = next(scan)
    subject.store.put(b"k", None, 1)
    subject.store.put(b"k", b"v9", S + 9)
    if end == "commit":
        subject.store.commit({})
    elif end == "rollback":
        subject.store.rollback()
    else:
        subject.store.close()
    assert [first, *scan] == expected


# -- restore and changelog ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("puts", "holds"),
    [(MOVED, holds_moved), (WITH_NULLS, holds_nulls), (REPEATED, holds_nulls), (SEVERAL, holds_several)],
    ids=["moved", "with nulls", "repeated", "several"],
)
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_restore_gives_what_the_puts_gave(
    subject: Subject, puts: Puts, holds: Callable[[Subject], None], batch: int
) -> None:
    changelog = [(value, timestamp) for value, timestamp, _ in puts]
    for start in range(0, len(changelog), batch):
        subject.restore(*changelog[start : start + batch])
        subject.store.commit({})
    holds(subject)
    assert list(subject.store.staged_changes()) == []


def test_an_expired_record_is_not_restored_and_not_counted(subject: Subject) -> None:
    subject.store.restore([(b"k", b"v", RETENTION + 10), (b"k1", b"v1", 10), (b"k2", b"v2", 9)])
    assert subject.latest() == (b"v", RETENTION + 10)
    assert subject.latest(b"k1") == (b"v1", 10)
    assert subject.latest(b"k2") is None
    assert subject.store.dropped_records == 0


def test_a_record_that_expires_later_in_the_restore_is_restored(subject: Subject) -> None:
    subject.store.restore([(b"k2", b"v2", 0), (b"k", b"v", RETENTION + 10)])
    assert subject.latest(b"k2") == (b"v2", 0)
    assert subject.latest() == (b"v", RETENTION + 10)


def test_the_changelog_has_one_record_per_put_with_its_timestamp(store: VersionedStore) -> None:
    store.put(b"k", b"v", 10)
    store.put(b"k", None, 20)
    store.put(b"k", b"late", 5)
    store.delete(b"j", 7)
    store.put(b"o", b"o", RETENTION + 30)
    store.put(b"k", b"dropped", 29)
    changes = [Change(b"k", b"v", 10), Change(b"k", None, 20), Change(b"k", b"late", 5), Change(b"j", None, 7)]
    assert list(store.staged_changes()) == [*changes, Change(b"o", b"o", RETENTION + 30)]
    assert store.staged_records == 3


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_what_is_staged_is_counted_until_it_is_settled(store: VersionedStore, context: StoreContext, end: str) -> None:
    store.put(b"k", None, 10)
    store.commit({})
    store.put(b"k", None, 10)  # changes no row, and is a put all the same
    once = store.approximate_num_uncommitted_bytes
    store.put(b"k", None, 10)
    assert (len(list(store.staged_changes())), store.staged_records) == (2, 1)
    assert store.approximate_num_uncommitted_bytes > once > 0
    if end == "commit":
        store.commit({})
    elif end == "rollback":
        store.rollback()
    else:
        store.close()
        store.init(context)
    assert (list(store.staged_changes()), store.staged_records, store.approximate_num_uncommitted_bytes) == ([], 0, 0)


# -- lifecycle, layout, other processes -----------------------------------------------------------------


def test_the_owner_sees_what_it_staged_and_a_committed_reader_does_not(store: VersionedStore) -> None:
    committed = VersionedReads(store.reader(COMMITTED), store.segments)
    store.put(b"k", b"v", 10)
    store.put(b"k", b"w", 20)
    assert store.get(b"k") == (b"w", 20, None)
    assert store.get_as_of(b"k", 15) == (b"v", 10, 20)
    assert list(store.get_versions(b"k", None, 15)) == [(b"v", 10, 20)]
    assert committed.get(b"k") is committed.get_as_of(b"k", 15) is None
    assert list(committed.get_versions(b"k")) == []
    store.commit({})
    assert list(committed.get_versions(b"k", ascending=True)) == [(b"v", 10, 20), (b"w", 20, None)]


def test_a_closed_store_refuses_everything(persistent: bool, context: StoreContext) -> None:
    store = make(persistent=persistent)
    for _ in range(2):
        for call in (
            lambda: store.get(b"k"),
            lambda: store.get_as_of(b"k", 1),
            lambda: store.get_versions(b"k"),
            lambda: store.put(b"k", b"v", 1),
            lambda: store.delete(b"k", 1),
            lambda: store.restore([(b"k", b"v", 1)]),
            lambda: store.staged_changes(),
        ):
            with pytest.raises(StoreClosedError):
                call()
        store.init(context)
        store.put(b"k", b"v", 1)
        store.close()


def test_a_secondary_and_the_notice_tell_of_the_same_keys(context: StoreContext, tmp_path: Path) -> None:
    store = make(persistent=True)
    store.init(context)
    for timestamp in (10, 20, S + 10):
        store.put(b"k", b"%d" % timestamp, timestamp)
    store.publish_staged()
    path = store_path(context.directory, "s", timestamped=False)
    with_notice = notice_path(context.directory, "s", timestamped=False)
    reader = SecondaryReader(path, with_notice, tmp_path / "scratch")
    assert reader.notice.staged_records == store.staged_records == 1
    assert reader.notice.staged_bytes == store.approximate_num_uncommitted_bytes
    reads = VersionedReads(reader, store.segments)
    assert list(reads.get_versions(b"k")) == []
    store.commit({})
    reader.refresh()
    assert reads.get_as_of(b"k", 15) == (b"10", 10, 20)
    assert list(reads.get_versions(b"k")) == list(store.get_versions(b"k"))
    reader.close()
    store.close()


def test_a_database_keeps_the_segments_it_began_with_when_the_retention_changes(context: StoreContext) -> None:
    store = make(persistent=True)
    store.init(context)
    for at_ms in range(1, 3 * S, S // 4):
        store.put(b"k", b"%d" % at_ms, at_ms)
    store.commit({})
    seen = list(store.get_versions(b"k"))
    store.close()
    other = VersionedStore("s", history_retention_ms=2 * RETENTION, segment_interval_ms=S + 1)
    other.init(context)
    assert other.segments.interval_ms == S
    assert list(other.get_versions(b"k"))[: len(seen)] == seen
    other.close()
    other.wipe()
    other.init(context)
    assert other.segments.interval_ms == S + 1
    other.close()


def test_a_history_that_was_made_longer_is_read_from_row_to_row(context: StoreContext) -> None:
    store = make(persistent=True)
    store.init(context)
    for at_ms in (1, 2, 3):
        store.put(b"k", b"%d" % at_ms, at_ms)
    store.commit({})
    store.close()
    now = 10_000 * S
    longer = VersionedStore("s", history_retention_ms=now, segment_interval_ms=S)
    longer.init(context)
    longer.put(b"k", b"now", now)
    longer.commit({})
    longer.put(b"staged", b"now", now)
    with patch.object(RocksDBEngine, "get", autospec=True, side_effect=RocksDBEngine.get) as looked_up:
        assert longer.get_as_of(b"k", 2) == (b"2", 2, 3)
        assert longer.get_as_of(b"other", 2) is None
        assert longer.put(b"staged", b"late", 10) == now
        assert longer.put(b"k", b"later", 10) == now
        assert [version.value for version in longer.get_versions(b"k")] == [b"now", b"later", b"3", b"2", b"1"]
    assert looked_up.call_count < 20
    longer.close()


def test_a_damaged_row_is_named(store: VersionedStore) -> None:
    store.put(b"k", b"v", 10)
    store.put(b"k", b"w", 20)
    store._stage(PREFIX.pack(0) + b"k", b"short")
    with pytest.raises(DamagedDataError, match="b'short' is no row"):
        store.get_as_of(b"k", 15)
    store._stage(LATEST + b"k", b"short")
    with pytest.raises(DamagedDataError, match="b'short'"):
        store.get(b"k")


def test_the_segment_interval_follows_the_history_retention() -> None:
    expected = {0: 2_000, 60_000: 20_000, 60_001: 20_000, 300_000: 60_000, 300_001: 60_000, 3_600_000: 300_000}
    expected |= {3_600_001: 300_000, 86_400_000: 3_600_000}
    assert {retention: default_segment_interval_ms(retention) for retention in expected} == expected
    assert VersionedStore("s", history_retention_ms=0).segments.interval_ms == 2_000
    for retention, interval in ((-1, None), (1, 0)):
        with pytest.raises(InvalidArgumentError):
            VersionedStore("s", history_retention_ms=retention, segment_interval_ms=interval)


def test_what_is_taken_back_to_a_savepoint_is_no_change_either(store: VersionedStore) -> None:
    store.put(b"k", b"kept", 10)
    size = store.approximate_num_uncommitted_bytes
    store.savepoint()
    store.put(b"k", b"taken back", 20)
    store.put(b"other", b"taken back", 2 * RETENTION)
    store.rollback_to_savepoint()
    assert list(store.staged_changes()) == [Change(b"k", b"kept", 10)]
    assert (store.staged_records, store.approximate_num_uncommitted_bytes) == (1, size)
    assert store.put(b"k", b"v", 5) == 10  # stream time went back too, and the next one is valid from 10 as before
    assert [version.value for version in store.get_versions(b"k", ascending=True)] == [b"v", b"kept"]


def test_a_shorter_history_leaves_nothing_of_a_longer_one_behind(context: StoreContext) -> None:
    long = VersionedStore("s", history_retention_ms=100 * S, segment_interval_ms=S)
    long.init(context)
    for at_ms in range(0, 20 * S, S):
        long.put(b"k", b"%d" % at_ms, at_ms)
    long.commit({})
    long.close()
    short = VersionedStore("s", history_retention_ms=2 * S, segment_interval_ms=S)
    short.init(context)
    short.put(b"k", b"new", 40 * S)
    short.commit({})
    segments = {PREFIX.unpack_from(key)[0] for key, _ in short.reader(COMMITTED).range(None, None)}
    assert all(segment < 0 or segment >= 38 for segment in segments)
    short.close()
