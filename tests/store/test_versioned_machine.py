"""Random versions against a plain dict of sorted lists: late puts, deletes, commits, rollbacks, crashes, reads."""

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from stateline_store import (
    NOT_PUT,
    Change,
    IsolationLevel,
    Reader,
    SecondaryReader,
    StoreContext,
    TopicPartition,
    VersionedReads,
    VersionedRecord,
    VersionedStore,
    notice_path,
    store_path,
)
from stateline_store.rocksdb.options import Tuning
from support.processes.killed import as_killed
from support.run.length import long_or_short

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)
KEYS = st.sampled_from([b"", b"a", b"a\xff"])  # few, and few times: so that puts meet
VALUES = st.none() | st.sampled_from([b"", b"1", b"22", bytes(300)])
TIMES = st.integers(0, 40)
LEVELS = st.sampled_from([COMMITTED, UNCOMMITTED])
RETENTIONS = st.sampled_from([0, 1, 9, 10, 25, 1000])
INTERVALS = st.sampled_from([1, 10, 17, 1000])
Put = tuple[bytes, bytes | None, int]
LATEST_OF_EACH: list[Put] = [(b"a", b"1", 10), (b"", b"1", 10), (b"a\xff", b"1", 10)]


class History:
    """The oracle: every version ever taken, and stream time."""

    def __init__(self, retention: int, puts: Iterable[Put] = ()) -> None:
        self.retention = retention
        self.stream_time = -1
        self.values: dict[bytes, dict[int, bytes | None]] = {}
        for put in puts:
            self.put(*put)

    def is_late(self, timestamp: int) -> bool:
        return timestamp < self.stream_time - self.retention

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int | None:
        if self.is_late(timestamp):
            return NOT_PUT
        self.stream_time = max(self.stream_time, timestamp)
        self.values.setdefault(key, {})[timestamp] = value
        return next((ts for ts in sorted(self.values[key]) if ts > timestamp), None)

    def versions(self, key: bytes) -> list[VersionedRecord]:
        """Whatever was there and is not past the retention, the oldest first; the latest is never past it."""
        times = sorted(self.values.get(key, ()))
        ends: list[int | None] = [*times[1:], None]  # one too many for a key without versions
        return [
            VersionedRecord(value, start, end)
            for start, end in zip(times, ends, strict=False)
            if (value := self.values[key][start]) is not None
            and (end is None or end > self.stream_time - self.retention)
        ]

    def get(self, key: bytes) -> VersionedRecord | None:
        return next((version for version in self.versions(key) if version.valid_to is None), None)

    def get_as_of(self, key: bytes, as_of: int) -> VersionedRecord | None:
        versions = self.versions(key)
        at = bisect_right([version.timestamp for version in versions], as_of)
        found = versions[at - 1] if at else None
        if found is None or found.valid_to is None:
            return found
        return found if self.stream_time - self.retention <= as_of < found.valid_to else None

    def get_versions(self, key: bytes, start: int | None, end: int | None) -> list[VersionedRecord]:
        if start is not None and end is not None and start > end:
            return []
        return [
            version
            for version in self.versions(key)
            if (end is None or version.timestamp <= end)
            and (start is None or version.valid_to is None or version.valid_to > start)
            and (version.valid_to is None or end is None or end >= self.stream_time - self.retention)
        ]


class VersionedMachine(RuleBasedStateMachine):
    """`committed` and `staged` are puts in the order of arrival; the oracle replays them."""

    persistent: bool

    @initialize(retention=RETENTIONS, interval=INTERVALS)
    def start(self, retention: int, interval: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.retention = retention
        self.committed: list[Put] = []
        self.staged: list[Put] = []
        self.crashes = self.dropped = self.offset = 0
        self.secondary: SecondaryReader | None = None
        self.store = VersionedStore(
            "s",
            history_retention_ms=retention,
            segment_interval_ms=interval,
            persistent=self.persistent,
            tuning=Tuning(64 * 1024, 128 * 1024),
        )
        self.open(self.root / "0")

    def open(self, task: Path) -> None:
        self.task = task
        self.store.init(StoreContext("0_0", task))

    def state(self, level: IsolationLevel) -> History:
        return History(self.retention, self.committed + (self.staged if level is UNCOMMITTED else []))

    def reads(self, level: IsolationLevel) -> VersionedReads:
        return VersionedReads(self.store.reader(level), self.store.segments)

    @rule(key=KEYS, value=VALUES, timestamp=TIMES)
    def put(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        expected = self.state(UNCOMMITTED).put(key, value, timestamp)
        assert self.store.put(key, value, timestamp) == expected
        self.count(key, value, timestamp, late=expected == NOT_PUT)

    @rule(key=KEYS, timestamp=TIMES)
    def delete(self, key: bytes, timestamp: int) -> None:
        state = self.state(UNCOMMITTED)
        late = state.is_late(timestamp)
        assert self.store.delete(key, timestamp) == (None if late else state.get_as_of(key, timestamp))
        self.count(key, None, timestamp, late=late)

    def count(self, key: bytes, value: bytes | None, timestamp: int, *, late: bool) -> None:
        if late:
            self.dropped += 1
        else:
            self.staged.append((key, value, timestamp))

    @rule()
    def commit(self) -> None:
        assert list(self.store.staged_changes()) == [Change(*put) for put in self.staged]
        self.offset += len(self.staged)
        self.store.commit({CHANGELOG: self.offset} if self.offset % 2 else {})
        self.committed += self.staged
        self.staged = []

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.staged = []

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open(self.task)
        self.lose_what_a_closed_store_loses()

    @rule()
    def crash(self) -> None:
        """What lies on disk at this instant is all that the next owner gets."""
        self.crashes += 1
        if self.persistent:
            as_killed(self.task, self.root / str(self.crashes))
        self.store.close()
        self.close_secondary()
        self.open(self.root / str(self.crashes))
        self.lose_what_a_closed_store_loses()

    @rule(key=KEYS, as_of=st.integers(-1, 45), level=LEVELS)
    def get(self, key: bytes, as_of: int, level: IsolationLevel) -> None:
        reads, state = self.reads(level), self.state(level)
        assert reads.get(key) == state.get(key)
        assert reads.get_as_of(key, as_of) == state.get_as_of(key, as_of)

    @rule(
        key=KEYS,
        start=st.none() | st.integers(-1, 45),
        end=st.none() | st.integers(-1, 45),
        level=LEVELS,
        ascending=st.booleans(),
    )
    def get_versions(
        self, key: bytes, start: int | None, end: int | None, level: IsolationLevel, ascending: bool
    ) -> None:
        expected = self.state(level).get_versions(key, start, end)
        found = list(self.reads(level).get_versions(key, start, end, ascending=ascending))
        assert found == (expected if ascending else expected[::-1])

    @rule()
    def read_everything_from_outside(self) -> None:
        """A secondary that stays open across everything shows the committed state."""
        if not self.persistent:
            return
        if self.secondary is None:
            self.secondary = SecondaryReader(
                store_path(self.task, "s", timestamped=False),
                notice_path(self.task, "s", timestamped=False),
                self.root / "scratch",
            )
        self.secondary.refresh()
        assert_same(self.secondary, self.store, self.state(COMMITTED))

    @rule()
    def restore_another_from_the_changelog(self) -> None:
        """All puts, those staged as well, in the order in which a commit would log them."""
        other = memory_store(self.store)
        other.restore(self.committed + [(c.key, c.value, c.timestamp or 0) for c in self.store.staged_changes()])
        assert_same(other.reader(UNCOMMITTED), other, self.state(UNCOMMITTED))
        other.close()

    @invariant()
    def stream_time_and_counts_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        for level in (COMMITTED, UNCOMMITTED):
            assert self.store.reader(level).stream_time_ms == self.state(level).stream_time
        assert self.store.staged_records == len({key for key, _, _ in self.staged})
        assert (self.store.approximate_num_uncommitted_bytes > 0) == bool(self.staged)
        assert self.store.dropped_records == self.dropped

    def lose_what_a_closed_store_loses(self) -> None:
        if not self.persistent:
            self.committed = []
        self.staged = []
        self.dropped = 0

    def close_secondary(self) -> None:
        if self.secondary is not None:
            self.secondary.close()
            self.secondary = None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.close_secondary()
            self.store.close()
            shutil.rmtree(self.root)


def memory_store(like: VersionedStore) -> VersionedStore:
    store = VersionedStore(
        "s",
        history_retention_ms=like.segments.retention_ms,
        segment_interval_ms=like.segments.interval_ms,
        persistent=False,
    )
    store.init(StoreContext("0_0", Path()))
    return store


def assert_same(reader: Reader, store: VersionedStore, state: History) -> None:
    """This reader of the store shows the state, for all keys at all times."""
    reads = VersionedReads(reader, store.segments)
    assert reader.stream_time_ms == state.stream_time
    for key in state.values:
        assert reads.get(key) == state.get(key)
        assert list(reads.get_versions(key, ascending=True)) == state.get_versions(key, None, None)
        for as_of in range(42):
            assert reads.get_as_of(key, as_of) == state.get_as_of(key, as_of)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_versioned_store_behaves_as_a_history_that_is_copied_at_each_commit(persistent: bool) -> None:
    machine = type("Machine", (VersionedMachine,), {"persistent": persistent})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=long_or_short(20, 8),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@settings(max_examples=150, deadline=None)
@given(
    retention=RETENTIONS,
    interval=INTERVALS,
    puts=st.lists(st.tuples(KEYS, VALUES, TIMES), max_size=40),
    commits=st.sets(st.integers(0, 40)),
)
@example(retention=1000, interval=10, puts=[(b"a", b"1", 50), (b"a", None, 50), (b"a", b"2", 40)], commits=set())
@example(retention=9, interval=1, puts=[(b"a", b"1", 5), (b"", b"1", 40), (b"a", None, 31)], commits={1})
@example(  # in one batch of the restore, versions that become the latest one after the other
    retention=1000,
    interval=100,
    puts=[*LATEST_OF_EACH, (b"a", b"2", 20), (b"a", b"3", 30), (b"a", b"4", 40)],
    commits={2},
)
@example(  # a deletion behind a version that became the latest
    retention=1000,
    interval=100,
    puts=[*LATEST_OF_EACH, (b"a", b"2", 20), (b"a", None, 30), (b"", b"2", 40)],
    commits={2},
)
@example(  # a version behind a deletion
    retention=1000,
    interval=100,
    puts=[*LATEST_OF_EACH, (b"a", None, 20), (b"a", b"2", 30), (b"", b"2", 40)],
    commits={2},
)
@example(  # in one batch of the restore, a version that becomes the latest, and one before it
    retention=1000,
    interval=100,
    puts=[(b"a", b"1", 10), (b"", b"1", 10), (b"a", b"2", 20), (b"a", b"3", 15)],
    commits={1},
)
def test_a_store_restored_from_its_changelog_has_the_same_rows_and_stream_time(
    retention: int, interval: int, puts: list[Put], commits: set[int]
) -> None:
    """Byte for byte, wherever commits cut the puts and in whatever batches the changelog is read."""
    store = VersionedStore("s", history_retention_ms=retention, segment_interval_ms=interval, persistent=False)
    store.init(StoreContext("0_0", Path()))
    changelog: list[Put] = []
    for index, put in enumerate(puts):
        store.put(*put)
        if index in commits or index == len(puts) - 1:
            changelog += [(change.key, change.value, change.timestamp or 0) for change in store.staged_changes()]
            store.commit({})
            assert list(store.staged_changes()) == []
    other = memory_store(store)
    half = len(changelog) // 2
    other.restore(changelog[:half])
    other.commit({})
    other.restore(iter(changelog[half:]))
    assert list(other.staged_changes()) == []
    other.commit({})
    assert other.stream_time_ms == store.stream_time_ms
    assert live_rows(other) == live_rows(store)
    assert other.dropped_records == 0
    assert_same(other.reader(COMMITTED), other, History(retention, puts))
    store.close()
    other.close()


def live_rows(store: VersionedStore) -> list[tuple[bytes, bytes]]:
    return list(store.reader(COMMITTED).range(None, None))
