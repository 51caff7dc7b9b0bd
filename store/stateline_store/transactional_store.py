"""TransactionalStore: what every kind of store has in common (KIP-892). The kinds add their keys and their reads.

Puts are staged in a TransactionBuffer; `commit` writes them in one atomic step together with the changelog
offsets, the Position and the stream time. The owner reads staged over committed; READ_COMMITTED readers see only
what was committed.

Two Positions: `committed`, and `pending` for input whose results are staged. A commit folds the one into the
other; a rollback drops the pending one with the records that it speaks of. Stream time, the largest timestamp that a
store with a retention has seen, goes the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from stateline_store.clock import now_ms
from stateline_store.commit_notice import CommitNotice, StoreState
from stateline_store.directory import directory_name, make_directory, notice_path, store_path
from stateline_store.engine import Commit, Engine, no_key
from stateline_store.errors import DamagedDataError, InvalidArgumentError, PoisonedError, StoreClosedError
from stateline_store.layout import Layout, StoreKind
from stateline_store.memory_engine import MemoryEngine
from stateline_store.offset_checkpoint import read_position
from stateline_store.plain_values import PlainValuesEngine
from stateline_store.position import Position, TopicPartition
from stateline_store.readers import CommittedReader, Reader, UncommittedReader
from stateline_store.rocksdb_engine import RocksDBEngine
from stateline_store.rocksdb_options import DEFAULT_TUNING, Tuning
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.segment_lengths import lengthen_segments
from stateline_store.state_store import Change, IsolationLevel, StateStore, StoreContext
from stateline_store.steps import reached
from stateline_store.store_schema import StoreSchema
from stateline_store.timestamped_rows import TIMESTAMP
from stateline_store.transaction_buffer import TransactionBuffer

_log = logging.getLogger(__name__)


class TransactionalStore(StateStore):
    """Rows of bytes, staged and committed. Each kind says what a row is.

    Not thread-safe: the thread that called `init` owns it. Before `init` and after `close` every read and
    write raises `StoreClosedError`; after a failed commit `PoisonedError`, until `close` and `init`.
    """

    kind: ClassVar[StoreKind]
    timestamped: ClassVar[bool] = False
    _segment_width: ClassVar[int] = 0  # bytes of a segment before each key, which the changelog does not have

    def __init__(self, name: str, *, persistent: bool = True, tuning: Tuning = DEFAULT_TUNING) -> None:
        """A closed store. `tuning` is for tests that want to see flushes and compactions."""
        self._name = name
        self._persistent = persistent
        self._tuning = tuning
        self._context: StoreContext | None = None
        self._engine: Engine | None = None
        self._notice: CommitNotice | None = None
        self._buffer = TransactionBuffer()
        self._committed = Commit()
        self._pending = Position()
        self._stream_time_ms = -1
        self._sequence = 0
        self._at_savepoint: tuple[int, int] | None = None
        self._failure: str | None = None  # why a commit failed: everything is refused until close and init

    # -- lifecycle --------------------------------------------------------------------------------------

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
        """How this store is declared to write its rows; a database that exists keeps its segments,
        unless they are much shorter (`segment_lengths.py`)."""
        return Layout(self.kind, self.timestamped)

    @property
    def schema(self) -> StoreSchema:
        """What a query must know of this store beside its rows (`queries.run`)."""
        return StoreSchema(self.kind, self.timestamped)

    def init(self, context: StoreContext) -> None:
        if self._engine is not None:
            raise StoreClosedError(f"Store {self._name!r} is open already: close it before opening it again.")
        self._context = context
        if self._persistent:
            try:
                self._open_persistent(context)
            except BaseException:
                self.close()  # what was opened by then would keep the next `init` out
                raise
        else:
            self._engine, self._committed = MemoryEngine(), Commit()
        self._drop_staged()

    def close(self) -> None:
        engine, self._engine, self._failure = self._engine, None, None
        if engine is None:
            return
        self._drop_staged()
        engine.close()
        if self._notice is not None:
            self._notice.publish_staged(0, 0)
            self._notice.publish_state(StoreState.CLOSED)
            self._notice.close()
            self._notice = None

    def wipe(self) -> None:
        """Delete this store's data, and nothing else: for the provably corrupt. The store must be closed.

        It goes where the last `init` opened it, or tried to. Readers answer `NotPresentError` until the next
        `init`.
        """
        if self._engine is not None or self._context is None:
            raise StoreClosedError(
                f"Store {self._name!r} can be wiped after an init (even a failed one) and when closed."
            )
        if not self._persistent:
            return
        directory = self._context.directory
        store = store_path(directory, self._name, timestamped=self._timestamped_files)
        CommitNotice(notice_path(directory, self._name, timestamped=self._timestamped_files)).withdraw()
        with contextlib.suppress(FileNotFoundError):
            # Moved in one step: half a database, after a crash in here, could be taken for a whole one.
            os.rename(store, self._trash(directory))
        self._empty_trash(directory)

    def set_state(self, state: StoreState, restore_remaining: int = 0) -> None:
        """Publish what the owner is doing; `restore_remaining` counts records. In memory there is no one
        to tell.
        """
        self._open()
        if self._notice is not None:
            self._notice.publish_state(state, restore_remaining)

    @property
    def dropped_records(self) -> int:
        """How many puts came too late and were dropped; none where there is no retention."""
        return 0

    def is_empty(self) -> bool:
        """Whether nothing is there, committed or staged; rows that a retention hides count as there."""
        with self._own_reader().scan(EVERY_KEY) as rows:
            return next(rows, None) is None

    def publish_staged(self) -> None:
        """Publish how much is staged: a few nanoseconds, for between slices of work."""
        self._open()
        if self._notice is not None:
            self._notice.publish_staged(self.staged_records, self.approximate_num_uncommitted_bytes)

    # -- reading ----------------------------------------------------------------------------------------

    def approximate_num_entries(self) -> int:
        """About how many rows there are; staged ones may count twice."""
        return self._own_reader().approximate_num_entries()

    def engine_properties(self) -> Mapping[str, int]:
        """What RocksDB says of this store's database (`rocksdb_engine.PROPERTIES`); empty for a store in memory."""
        return self._open().properties()

    def reader(self, isolation_level: IsolationLevel) -> Reader:
        """A reader for the owner's process and thread. It follows commits, and ends with this opening of
        the store.
        """
        if isolation_level is IsolationLevel.READ_COMMITTED:
            return CommittedReader(self._open(), lambda: self._committed)
        return self._own_reader()

    # -- transaction ------------------------------------------------------------------------------------

    def advance(self, position: Position) -> None:
        """The input up to here is applied and staged. Call with each slice of input; it never goes back."""
        self._open()
        self._pending = self._pending.merge(position)

    def staged_changes(self) -> Iterable[Change]:
        """What was put since the last commit, as its changelog holds it: one change per key, in key order."""
        self._open()
        staged = self._buffer.scan()  # pinned now, however late it is read
        return itertools.chain.from_iterable(self._changes(rows) for rows in staged.chunks())

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Stage changes as its changelog holds them, the newest last."""
        self._open()
        self._buffer.put_all((key, value) for key, value, _ in changes)

    def get_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The stored bytes of many keys at once, staged or committed, None where there are none: a timestamped store's
        begin with their timestamp, the keys of windows and sessions with their segment."""
        engine, staged = self._open(), self._buffer.rows
        if staged.keys().isdisjoint(keys):
            return engine.get_many(keys)
        found = iter(engine.get_many([key for key in keys if key not in staged]))
        return [staged[key] if key in staged else next(found) for key in keys]

    def put_rows(self, rows: dict[bytes, bytes | None], stream_time_ms: int = -1) -> None:
        """Stage stored bytes of many keys at once, None deletes; the dict is the store's from then on. A store with a
        retention has seen times up to `stream_time_ms` with them. All or (on `InvalidArgumentError`) nothing."""
        self._open()
        self._buffer.take(rows)
        self._stream_time_ms = max(self._stream_time_ms, stream_time_ms)

    def staged(self) -> Iterator[tuple[bytes, bytes | None]]:
        """One entry per key changed since the last commit, in key order: raw stored bytes, None for a
        delete.
        """
        self._open()
        return self._buffer.scan()

    @property
    def staged_version(self) -> object:
        """Which version of what is staged a scan that is begun now keeps in memory: compare it by identity."""
        return self._buffer.version

    @property
    def staged_records(self) -> int:
        """How many keys are staged."""
        return len(self._buffer)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._buffer.bytes_staged

    def commit(
        self,
        changelog_offsets: Mapping[TopicPartition, int],
        *,
        position: Position | None = None,
        announce: bool = True,
    ) -> None:
        """As `StateStore.commit`. `position`, when given, advances the pending one first.

        Readers in other processes see it when it is announced: at once, or by `announce_commit`, so that an owner of
        several stores lets them see one commit of all. (A reader that opens in between may be ahead; an owner that
        dies in between is made good for by the next `init`.)

        Without anything new (no record, no offset, no position) it does nothing, and no commit number is
        spent.
        """
        engine = self._open()
        pending = self._pending.merge(position) if position else self._pending
        old = self._committed
        moved = {tp: offset for tp, offset in changelog_offsets.items() if old.offsets.get(tp) != offset}
        combined = old.position.merge(pending)
        new = self._buffer.rows or moved or self.stream_time_ms != old.stream_time_ms
        if not new and combined == old.position:
            self._pending = Position()
            return
        commit = Commit(old.number + 1, now_ms(), combined, moved, self.stream_time_ms, self._sequence)
        try:
            expired = self._expired(old.stream_time_ms, self.stream_time_ms)
            reached("commit:batch-ready")
            self._write(engine, self._buffer.rows, commit, expired)
            reached("commit:batch-written")
            self._committed = replace(commit, offsets={**old.offsets, **moved})
        finally:
            # Also after a failure: what was staged may or may not be on disk then.
            self._drop_staged()
        if announce:
            self.announce_commit()

    def announce_commit(self) -> None:
        """Let readers in other processes see the newest commit, after one that was made without announcing it."""
        if self._notice is not None:
            self._notice.publish(self._committed.number, self._committed.committed_at_ms)
            reached("commit:store-announced")

    def forget(self, topic: str) -> None:
        """Take a topic out of the committed Position, at once: it was deleted, and an offset of a topic that was made
        anew under its name means something else. Nothing may be staged. Synced, and fails, as a commit does."""
        engine, old = self._open(), self._committed
        if self._buffer.rows or self._pending or self.stream_time_ms != old.stream_time_ms:
            raise InvalidArgumentError(f"Store {self._name!r} has staged records: commit or roll back first.")
        if topic not in old.position.offsets:
            return
        position = Position({t: partitions for t, partitions in old.position.offsets.items() if t != topic})
        commit = replace(old, number=old.number + 1, position=position)
        self._write(engine, {}, replace(commit, offsets={}))
        self._committed = commit
        self.announce_commit()

    def savepoint(self) -> None:
        """What is staged from here on can be taken back alone (`rollback_to_savepoint`), until the next savepoint or
        commit: the writes of one record whose processor fails."""
        self._open()
        self._buffer.savepoint()
        self._at_savepoint = (self._stream_time_ms, self._sequence)

    def rollback_to_savepoint(self) -> None:
        """Take back what was staged since `savepoint`; nothing without one. The pending Position stays."""
        self._open()
        self._buffer.rollback_to_savepoint()
        if self._at_savepoint is not None:
            self._stream_time_ms, self._sequence = self._at_savepoint
            self._at_savepoint = None

    def rollback(self) -> None:
        """Drop everything staged since the last commit, the pending Position with it. Open iterators go
        on.
        """
        self._open()
        self._drop_staged()
        self.publish_staged()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        self._open()
        return self._committed.offsets.get(partition) if self._persistent else None

    def position(self, isolation_level: IsolationLevel) -> Position:
        """How far into its input the store has come, as seen at this isolation level."""
        self._open()
        return self._seen() if isolation_level is IsolationLevel.READ_UNCOMMITTED else self._committed.position

    @property
    def stream_time_ms(self) -> int:
        """The largest timestamp put into a store with a retention, staged or committed; -1 before the first."""
        return self._stream_time_ms

    @property
    def commit_number(self) -> int:
        """The number of the newest commit, from 1; 0 before the first. A persistent store counts on when
        reopened.
        """
        return self._committed.number

    @property
    def committed_at_ms(self) -> int:
        """When that commit was made by the machine's clock, which may jump, in milliseconds since the epoch; 0 before
        the first."""
        return self._committed.committed_at_ms

    # -- inner workings ---------------------------------------------------------------------------------

    def _open(self) -> Engine:
        if self._failure is not None:
            raise PoisonedError(self._failure)
        if self._engine is None:
            raise StoreClosedError(f"Store {self._name!r} is closed: call init first.")
        return self._engine

    def _write(
        self, engine: Engine, rows: Mapping[bytes, bytes | None], commit: Commit, expired: KeyRange | None = None
    ) -> None:
        """One batch of a commit's rows; whatever is written goes through here. When it fails everything is refused."""
        assert self._context is not None
        try:
            engine.write(rows, commit, expired, sync=self._context.sync)
        except PoisonedError as error:
            self._failure = str(error)
            raise

    @property
    def _timestamped_files(self) -> bool:
        """Whether the files of this opening are in the timestamped (v2) format."""
        return self.timestamped and not (self._context is not None and self._context.plain_format)

    def _own_reader(self) -> UncommittedReader:
        return UncommittedReader(self._open(), self._buffer, self._seen, lambda: self._stream_time_ms)

    def _seen(self) -> Position:
        return self._committed.position.merge(self._pending)

    def _get(self, key: bytes) -> bytes | None:
        """The stored bytes, staged or committed. Raises `InvalidArgumentError` unless the key is bytes."""
        staged = self._buffer.rows
        try:
            return staged[key] if key in staged else self._open().get(key)
        except TypeError as error:  # a bytearray, which has no hash
            if isinstance(key, bytes):
                raise
            raise no_key(key) from error

    def _stage(self, key: bytes, value: bytes | None) -> None:
        """Stage stored bytes."""
        if self._engine is None or self._failure is not None:
            self._open()
        self._buffer.put(key, value)

    def _changes(self, rows: list[tuple[bytes, bytes | None]]) -> Iterator[Change]:
        width, read = self._segment_width, TIMESTAMP.unpack_from
        keys = [key[width:] for key, _ in rows] if width else [key for key, _ in rows]
        stamps: Iterable[int | None] = itertools.repeat(None, len(rows))
        if self.timestamped:
            stamps = [None if stored is None else read(stored)[0] for _, stored in rows]
            values = [None if stored is None else stored[8:] for _, stored in rows]
        else:
            values = [stored for _, stored in rows]
        # Made in C: three times as fast as calling `Change` for each.
        return map(tuple.__new__, itertools.repeat(Change), zip(keys, values, stamps, strict=True))

    def _drop_staged(self) -> None:
        self._buffer.clear()
        self._pending = Position()
        self._stream_time_ms, self._sequence = self._committed.stream_time_ms, self._committed.sequence
        self._at_savepoint = None

    def _expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        """The rows that a commit removes because stream time went from `before_ms` to here; None for none."""
        del before_ms, stream_time_ms
        return None

    def _open_persistent(self, context: StoreContext) -> None:
        make_directory(context.directory)
        self._empty_trash(context.directory)
        path = store_path(context.directory, self._name, timestamped=self._timestamped_files)
        layout = replace(self.layout, timestamped=self._timestamped_files)
        database = RocksDBEngine(path, self._tuning, layout, context.types, context.changelog)
        engine: Engine = database
        at = notice_path(context.directory, self._name, timestamped=self._timestamped_files)
        try:
            lengthen_segments(database, layout, at)
            self._take_layout(database.layout)
            committed = engine.last_commit()
            notice = CommitNotice(at)
        except BaseException:
            engine.close()
            raise
        notice.open(committed.number, committed.committed_at_ms)
        if self.timestamped and not self._timestamped_files:
            engine = PlainValuesEngine(engine)
        self._engine, self._committed, self._notice = engine, committed, notice
        self._drop_staged()
        self._take_position_file(context.directory / f"{self._name}.position")

    def _take_layout(self, layout: Layout) -> None:
        """These are the segments of the database that was opened: an older one keeps those it began with."""

    def _take_position_file(self, path: Path) -> None:
        """Move the Position that Kafka Streams kept in a file into the store, if that has rows and none of its own.

        The file goes then (KIP-892). Of a store without rows it would claim what is not there.
        """
        if not path.exists():
            return
        if not self._committed.position and not self.is_empty():
            try:
                position = read_position(path)
            except DamagedDataError as error:
                _log.warning("The Position of store %s is not taken over, and its file stays: %s", self._name, error)
                return
            self.commit({}, position=position)
            reached("position:taken")
        path.unlink(missing_ok=True)
        reached("position:removed")

    def _trash(self, directory: Path) -> Path:
        return directory / f".wiped-{directory_name(self._name, timestamped=self._timestamped_files)}"

    def _empty_trash(self, directory: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._trash(directory))
