"""What the state machines of window and session stores share: opening, committing, crashing, rebuilding."""

import shutil
import tempfile
from pathlib import Path
from typing import Generic, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stateline_store import (
    Change,
    IsolationLevel,
    Position,
    Reader,
    SecondaryReader,
    SessionStore,
    StoreContext,
    TopicPartition,
    WindowStore,
    notice_path,
    store_path,
)
from store.windowed_oracle import Oracle
from support.processes.killed import as_killed
from support.run.length import long_or_short

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
INPUT = TopicPartition("input", 0)
RETENTION = 100_000  # segments of a minute, so that a put is late from one to two minutes on
KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"a" + bytes(12), b"\xff"])
TIMES = st.sampled_from([0, 1, 59_999, 60_000, 99_999, 100_000, 100_001, 160_000, 200_000, 230_000])
BOUNDS = st.sampled_from([-1, 2**63]) | TIMES  # also what no row can have
VALUES = st.sampled_from([b"", b"1", b"22"])
LEVELS = st.sampled_from([COMMITTED, UNCOMMITTED])
SETTINGS = settings(
    max_examples=long_or_short(15, 7),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

Store = TypeVar("Store", WindowStore, SessionStore)


class WindowedMachine(RuleBasedStateMachine, Generic[Store]):
    """`oracle` says what is there; `log` is the changelog, as each commit wrote it."""

    persistent: bool
    store: Store

    def make(self, *, persistent: bool) -> Store:
        raise NotImplementedError

    def make_oracle(self) -> Oracle:
        raise NotImplementedError

    def check_all(self, reader: Reader, level: IsolationLevel) -> None:
        """Everything that this reader shows is what the oracle has at this level."""
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.oracle = self.make_oracle()
        self.log: list[Change] = []
        self.crashes = self.commits = 0
        self.reader: SecondaryReader | None = None
        self.open(self.root / "0")

    def open(self, task: Path) -> None:
        self.task = task
        self.store = self.make(persistent=self.persistent)
        self.store.init(StoreContext("0_0", task))

    def plain(self, value: bytes) -> bytes:
        return value[8:] if self.store.timestamped else value

    @rule()
    def commit(self) -> None:
        self.log += self.store.staged_changes()
        self.commits += 1
        self.store.commit({}, position=Position.of({INPUT: self.commits}))
        self.oracle.commit()

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.oracle.rollback()

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        """Closed without a commit; or what lies on disk at this instant is all that the next owner gets."""
        task = self.task
        if crash and self.persistent:
            self.crashes += 1
            task = as_killed(self.task, self.root / str(self.crashes))
            self.close_reader()
        self.store.close()
        self.open(task)
        self.oracle.reopen(persistent=self.persistent)
        if not self.persistent:
            self.log = []

    @rule()
    def read_from_outside(self) -> None:
        """A secondary that stays open across everything shows the committed state."""
        if not self.persistent:
            return
        if self.reader is None:
            stamped = self.store.timestamped
            store, notice = (path(self.task, "s", timestamped=stamped) for path in (store_path, notice_path))
            self.reader = SecondaryReader(store, notice, self.root / "scratch")
        self.reader.refresh()
        self.check_all(self.reader, COMMITTED)
        assert self.reader.stream_time_ms == self.oracle.committed.stream_time

    @rule(batch=st.integers(1, 5))
    def rebuild(self, batch: int) -> None:
        """Another store, restored from the changelog alone, has the committed state."""
        rebuilt = self.make(persistent=False)
        rebuilt.init(StoreContext("0_0", self.root))
        for at in range(0, len(self.log), batch):
            rebuilt.restore(
                (key, value, -1 if time is None else time) for key, value, time in self.log[at : at + batch]
            )
            rebuilt.commit({})
        self.check_all(rebuilt.reader(COMMITTED), COMMITTED)
        assert rebuilt.stream_time_ms == self.oracle.committed.stream_time
        rebuilt.close()

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "store"):
            assert self.store.stream_time_ms == self.oracle.now.stream_time
            assert self.store.reader(COMMITTED).stream_time_ms == self.oracle.committed.stream_time
            assert self.store.dropped_records == self.oracle.dropped
            for level in (COMMITTED, UNCOMMITTED):
                self.check_all(self.store.reader(level), level)

    def close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.close_reader()
            self.store.close()
            shutil.rmtree(self.root)
