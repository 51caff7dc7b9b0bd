"""CommittedStore: the committed half of a store: its database, its newest commit, and its commit notice.

The other half is `transactional_store`: the staged changes until the next commit. `rocksdb_writes` writes the bytes of
a commit.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from stateline_store.clock import now_ms
from stateline_store.engines.engine import Commit, Engine
from stateline_store.engines.memory_engine import MemoryEngine
from stateline_store.errors import DamagedDataError, InvalidArgumentError, PoisonedError, StoreClosedError
from stateline_store.files.commit_notice import CommitNotice, StoreState
from stateline_store.files.directory import make_directory
from stateline_store.files.offset_checkpoint import read_position
from stateline_store.files.store_files import StoreFiles
from stateline_store.layout import Layout, StoreKind
from stateline_store.position import TopicPartition
from stateline_store.reads.plain_values import PlainValuesEngine
from stateline_store.rocksdb.added_headers import add_headers
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rocksdb.segment_lengths import lengthen_segments
from stateline_store.rows.expiry import IndexChanges
from stateline_store.rows.segments import Segments
from stateline_store.rows.store_schema import StoreSchema
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.state_store import StateStore, StoreContext
from stateline_store.steps import reached

_log = logging.getLogger(__name__)


class CommittedStore(StateStore):
    """A store from opening to closing, with its committed rows on disk or in memory. Not thread-safe, as `StateStore`.

    Before `init` and after `close` every read and write raises `StoreClosedError`; after a failed commit
    `PoisonedError`, until `close` and `init`.

    25 methods and properties: eight that `StateStore` asks for, those that tell what is committed, and the steps of
    opening. All of them are about one engine, its newest commit and its notice, which have one owner.
    """

    kind: ClassVar[StoreKind]
    timestamped: ClassVar[bool] = False
    stored_schema: StoreSchema
    """`schema` with values as they are stored, from `init` on. Each query that a worker answers uses it."""
    _expires: ClassVar[bool] = False  # entries have a time to live
    _segments: Segments | None = None  # of a kind whose rows expire: the retention, and how time is cut

    def __init__(
        self, name: str, *, persistent: bool = True, headers: bool = False, tuning: Tuning = DEFAULT_TUNING
    ) -> None:
        """Make a closed store. `headers`: its values are those of `rows.headers.join_headers`. Tests give `tuning` to
        cause flushes and compactions. Raises `InvalidArgumentError` for headers in a store without timestamps."""
        if headers and not self.timestamped:
            raise InvalidArgumentError(f"Store {name!r} keeps no timestamps: only a timestamped store has headers.")
        self.headers = headers
        self._name = name
        self._persistent = persistent
        self._tuning = tuning
        self._context: StoreContext | None = None
        self._engine: Engine | None = None
        self._notice: CommitNotice | None = None
        self._committed = Commit()
        self._restore_remaining = 0  # in memory, where no notice says it
        self._failure: str | None = None  # why a commit failed: everything is refused until close and init

    @property
    def name(self) -> str:
        return self._name

    @property
    def persistent(self) -> bool:
        return self._persistent

    @property
    def manages_offsets(self) -> bool:
        return self._persistent

    @property
    def transactional(self) -> bool:
        return True

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def layout(self) -> Layout:
        """The declared form of the rows. An existing database keeps its segments, unless they are much shorter
        (`segment_lengths.py`)."""
        return Layout(self.kind, self.timestamped, headers=self.headers)

    @property
    def schema(self) -> StoreSchema:
        """The kind and segments of the store, for `queries.run`."""
        return StoreSchema(self.kind, self.timestamped, self._segments)

    def init(self, context: StoreContext) -> None:
        if self._engine is not None:
            raise StoreClosedError(f"Store {self._name!r} is open already: close it before opening it again.")
        self._context = context
        if self._persistent:
            try:
                self._open_files(self._files(context))
            except BaseException:
                self.close()  # what was opened by then would keep the next `init` out
                raise
        else:
            self._engine, self._committed, self._restore_remaining = MemoryEngine(), Commit(), 0
            self._drop_staged()
        self.stored_schema = self.schema.of_stored_values()

    def close(self) -> None:
        engine, self._engine, self._failure = self._engine, None, None
        if engine is None:
            return
        self._drop_staged()
        engine.close()
        if self._notice is not None:
            self._notice.publish_end()
            self._notice.close()
            self._notice = None

    def wipe(self) -> None:
        """Delete the data of a damaged store, where the last `init` opened it or tried to. The store must be closed.
        Readers raise `NotPresentError` until the next `init`."""
        if self._engine is not None or self._context is None:
            raise StoreClosedError(
                f"Store {self._name!r} can be wiped after an init (even a failed one) and when closed."
            )
        if self._persistent:
            self._files(self._context).wipe()

    def set_state(self, state: StoreState, restore_remaining: int | None = None) -> None:
        """Publish the store's state. `restore_remaining` is a number of offsets, and unchanged for None
        (`CommitNotice.publish_state`). A store in memory keeps the number for its owner alone."""
        self._open()
        if self._notice is not None:
            self._notice.publish_state(state, restore_remaining)
        elif state is StoreState.ACTIVE:
            self._restore_remaining = 0
        elif restore_remaining is not None:
            self._restore_remaining = restore_remaining

    @property
    def restore_remaining(self) -> int:
        """The number of offsets that a restore still has to read, as last published by this or a former owner."""
        self._open()
        return self._restore_remaining if self._notice is None else self._notice.restore_remaining

    def committed_offset(self, partition: TopicPartition) -> int | None:
        self._open()
        return self._committed.offsets.get(partition) if self._persistent else None

    @property
    def commit_number(self) -> int:
        """The number of the newest commit, from 1. 0 before the first. A persistent store counts on when reopened."""
        return self._committed.number

    @property
    def committed_at_ms(self) -> int:
        """The time of the newest commit by the machine's clock, in milliseconds since the epoch. 0 before the first."""
        return self._committed.committed_at_ms

    @property
    def dropped_records(self) -> int:
        """The number of puts that were dropped as late. 0 without a retention."""
        return 0

    def engine_properties(self) -> Mapping[str, int]:
        """Return RocksDB's properties of the database (`rocksdb_engine.PROPERTIES`), none for a store in memory."""
        return self._open().properties()

    def announce_commit(self) -> None:
        """Announce the newest commit to readers in other processes."""
        if self._notice is not None:
            self._notice.publish(self._committed.number, self._committed.committed_at_ms)
            reached("commit:store-announced")

    @abstractmethod
    def _drop_staged(self) -> None:
        """Drop all staged changes."""

    def _open(self) -> Engine:
        if self._failure is not None:
            raise PoisonedError(self._failure)
        if self._engine is None:
            raise StoreClosedError(f"Store {self._name!r} is closed: call init first.")
        return self._engine

    def _write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
    ) -> None:
        """Write rows and commit in one batch. All writes of the store go through here. `commit.offsets` are those that
        moved. After a failure the store refuses everything."""
        assert self._context is not None
        engine = self._open()
        reached("commit:batch-ready")
        try:
            engine.write(rows, commit, expired, index, sync=self._context.sync)
        except PoisonedError as error:
            self._failure = str(error)
            raise
        reached("commit:batch-written")
        self._committed = replace(commit, offsets={**self._committed.offsets, **commit.offsets})

    def _files(self, context: StoreContext) -> StoreFiles:
        return StoreFiles(context.directory, self._name, self.timestamped and not context.plain_format)

    def _open_files(self, files: StoreFiles) -> None:
        """Open the database and the notice. Completes the interrupted steps of an earlier owner: a wipe, added
        headers, and the move of a Position file into the store."""
        assert self._context is not None
        make_directory(files.task)
        files.finish_wipe()
        layout = replace(self.layout, timestamped=files.timestamped, headers=self.headers and files.timestamped)
        types, changelog = self._context.types, self._context.changelog
        expires = self._expires and files.timestamped
        database = RocksDBEngine(files.database, self._tuning, layout, types, changelog, expires=expires)
        try:
            add_headers(database, layout, files.notice)  # first: a crash leaves it halfway in the order of segments
            lengthen_segments(database, layout, files.notice)
            self._take_layout(database.layout)
            committed = database.last_commit()
            notice = CommitNotice(files.notice)
        except BaseException:
            database.close()
            raise
        notice.open(committed.number, committed.committed_at_ms)
        is_plain = self.timestamped and not files.timestamped
        self._engine = PlainValuesEngine(database, headers=self.headers) if is_plain else database
        self._committed, self._notice = committed, notice
        self._take_position_file(files.position)
        self._drop_staged()

    def _take_layout(self, layout: Layout) -> None:
        """Use the segments of the database that was opened."""

    def _take_position_file(self, path: Path) -> None:
        """Move the Position of Kafka Streams' file into the store, if the store has rows and no Position. Then delete
        the file (KIP-892). In a store without rows, the Position would vouch for missing rows."""
        if not path.exists():
            return
        old = self._committed
        if not old.position and _has_rows(self._open()):
            try:
                position = read_position(path)
            except DamagedDataError as error:
                _log.warning("The Position of store %s is not taken over, and its file stays: %s", self._name, error)
                return
            if position:
                commit = replace(old, number=old.number + 1, committed_at_ms=now_ms(), position=position, offsets={})
                self._write({}, commit)
                self.announce_commit()
            reached("position:taken")
        path.unlink(missing_ok=True)
        reached("position:removed")


def _has_rows(engine: Engine) -> bool:
    with engine.scan(EVERY_KEY) as rows:
        return next(rows, None) is not None
