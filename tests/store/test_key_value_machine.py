"""Random operations against a plain dict: puts, deletes, commits, rollbacks, reopening, crashes, scans."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    Position,
    SecondaryReader,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    notice_path,
    store_path,
)
from stateline_store.rocksdb.options import Tuning
from support.processes.killed import as_killed
from support.run.length import long_or_short

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xfe\xff", b"\xff", b"\xff\xff"]) | st.binary(
    max_size=2
)
VALUES = st.sampled_from([b"", b"1", b"22", bytes(3000)])
LEVELS = st.sampled_from([COMMITTED, UNCOMMITTED])
Rows = list[tuple[bytes, bytes]]


class StoreMachine(RuleBasedStateMachine):
    """`committed` and `staged` are the oracle; `position` counts the slices of input."""

    kind: type[KeyValueStore]
    persistent: bool

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.committed: dict[bytes, bytes] = {}
        self.staged: dict[bytes, bytes | None] = {}
        self.seen = self.pending = self.offset = self.crashes = 0
        self.reader: SecondaryReader | None = None
        self.store = self.kind("s", persistent=self.persistent, tuning=Tuning(64 * 1024, 128 * 1024))
        self.open(self.root / "0")

    def open(self, task: Path) -> None:
        self.task = task
        self.store.init(StoreContext("0_0", task))

    def state(self, level: IsolationLevel) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes | None] = {**self.committed, **(self.staged if level is UNCOMMITTED else {})}
        return {key: value for key, value in rows.items() if value is not None}

    def plain(self, rows: Rows) -> Rows:
        return [(key, value[8:]) for key, value in rows] if self.store.timestamped else rows

    @rule(key=KEYS, value=st.none() | VALUES)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.put(key, value)
        self.staged[key] = value

    @rule(key=KEYS, value=VALUES)
    def put_if_absent(self, key: bytes, value: bytes) -> None:
        found = self.state(UNCOMMITTED).get(key)
        assert self.store.put_if_absent(key, value) == found
        if found is None:
            self.staged[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        assert self.store.delete(key) == self.state(UNCOMMITTED).get(key)
        self.staged[key] = None

    @rule(entries=st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=10))
    def put_all(self, entries: list[tuple[bytes, bytes | None]]) -> None:
        self.store.put_all(entries)
        self.staged.update(entries)

    @rule()
    def advance(self) -> None:
        self.pending += 1
        self.store.advance(Position.of({INPUT: self.pending}))

    @rule()
    def commit(self) -> None:
        self.offset += 1
        self.store.commit({CHANGELOG: self.offset})
        self.committed = self.state(UNCOMMITTED)
        self.staged = {}
        self.seen = self.pending

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.drop_staged()

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
        self.close_reader()
        self.open(self.root / str(self.crashes))
        self.lose_what_a_closed_store_loses()

    @rule(key=KEYS, level=LEVELS)
    def get(self, key: bytes, level: IsolationLevel) -> None:
        value = self.store.reader(level).get(key)
        found = self.plain([(key, value)]) if value is not None else []
        assert dict(found).get(key) == self.state(level).get(key)

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS, level=LEVELS, reverse=st.booleans())
    def range(self, lower: bytes | None, upper: bytes | None, level: IsolationLevel, reverse: bool) -> None:
        rows = self.plain(list(self.store.reader(level).range(lower, upper, reverse=reverse)))
        inside = [
            (key, value)
            for key, value in self.state(level).items()
            if (lower is None or key >= lower) and (upper is None or key <= upper)
        ]
        assert rows == sorted(inside, reverse=reverse)

    @rule(prefix=KEYS, level=LEVELS, reverse=st.booleans())
    def prefix_scan(self, prefix: bytes, level: IsolationLevel, reverse: bool) -> None:
        rows = self.plain(list(self.store.reader(level).prefix_scan(prefix, reverse=reverse)))
        inside = [item for item in self.state(level).items() if item[0].startswith(prefix)]
        assert rows == sorted(inside, reverse=reverse)

    @rule()
    def read_from_outside(self) -> None:
        """A secondary that stays open across everything shows the committed state and Position."""
        if not self.persistent:
            return
        if self.reader is None:
            timestamped = self.store.timestamped
            self.reader = SecondaryReader(
                store_path(self.task, "s", timestamped=timestamped),
                notice_path(self.task, "s", timestamped=timestamped),
                self.root / "scratch",
            )
        self.reader.refresh()
        assert self.plain(list(self.reader.range(None, None))) == sorted(self.committed.items())
        assert self.reader.position.get(*INPUT) == (self.seen or None)

    @invariant()
    def positions_offsets_and_counts_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.position(COMMITTED).get(*INPUT) == (self.seen or None)
        assert self.store.position(UNCOMMITTED).get(*INPUT) == (self.pending or None)
        assert self.store.staged_records == len(self.staged)
        assert self.store.committed_offset(CHANGELOG) == (self.offset or None if self.persistent else None)
        assert [key for key, _ in self.store.staged()] == sorted(self.staged)

    def drop_staged(self) -> None:
        self.staged = {}
        self.pending = self.seen

    def lose_what_a_closed_store_loses(self) -> None:
        if not self.persistent:
            self.committed = {}
            self.seen = 0
        self.drop_staged()

    def close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.close_reader()
            self.store.close()
            shutil.rmtree(self.root)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", [KeyValueStore, TimestampedKeyValueStore])
def test_a_store_behaves_as_a_dict_that_is_copied_at_each_commit(kind: type[KeyValueStore], persistent: bool) -> None:
    machine = type("Machine", (StoreMachine,), {"kind": kind, "persistent": persistent})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=long_or_short(12, 6),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
