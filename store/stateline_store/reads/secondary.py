"""SecondaryReader: committed reads in another process than the owner's, through a RocksDB secondary.

A secondary follows the owner's manifest and write-ahead log at each `refresh`, and does not change in between. RocksDB
does not promise all of this, so it is checked here. An answer is then right, or an error that says to ask again:

1. The notice's commit number, read before a catch-up, is demanded from the database's own row after it.
2. No catch-up goes across the flush of a log whose end was not read before: RocksDB can leave the flushed rows hidden
   behind older ones that it had replayed (facebook/rocksdb issues 14444, 15051), or miss the end of a log that was
   deleted after it read the manifest. This happens to one column family alone, so the commit number looks right. Only
   the newest log at the start of the last refresh can have an unread end. If it is gone, or if there are newer logs
   and the manifest has changed, the reader opens again, with empty memory. It checks this before and after the
   catch-up. Flushes are recorded in the manifest before their logs are deleted, and logs are deleted in order.
3. An opening during which the manifest changed is not used: table files can vanish in between, and RocksDB then shows
   an older state without an error.
4. After a change of generation (reopened, wiped, rebuilt), the reader opens again. Generation 0 means no database.
5. At the first opening of a generation the logs must follow each other without a gap (`write_ahead_logs.py`), because
   of a power cut since the last owner. There is none while this process lives, and an owner has checked the logs.
6. After an error, the reader catches up once more, then opens again, then raises `RetryLaterError`.

An opening takes about a millisecond, and more with a long log to replay. Most flushes cause one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from stateline_store.engines.engine import Commit, no_key
from stateline_store.errors import (
    NewerFormatError,
    NotPresentError,
    RetryLaterError,
    StatelineError,
    StoreClosedError,
)
from stateline_store.files.commit_notice import NoticeView
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import Position, TopicPartition
from stateline_store.reads.readers import Reader
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.rows import estimated_rows, rows_at_least
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rocksdb.secondary import OwnerFiles, RocksDBSecondary
from stateline_store.rows.segments import SegmentRange
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.state_store import IsolationLevel

_ATTEMPTS = 5  # openings before giving up: each fails only when a flush ends within its few milliseconds


class SecondaryReader(Reader):
    """A `Reader` of committed state in another process. Data and Position only change by `refresh`. Not thread-safe. It
    never answers wrong or empty for lack of data: it raises `RetryLaterError` instead."""

    isolation_level = IsolationLevel.READ_COMMITTED

    def __init__(
        self, store_directory: Path, notice_path: Path, scratch_directory: Path, *, scans_much: bool = False
    ) -> None:
        """Open the store as its owner last committed it. `scratch_directory` is created if need be, and its files are
        removed at `close`. With `scans_much`, scans put no blocks into the cache, which takes a third of their time.
        Raises `NotPresentError` if no owner has opened the store here, or if it was wiped."""
        self._directory = store_directory
        self._scans_much = scans_much
        self._scratch = scratch_directory
        self._secondary: RocksDBSecondary | None = None
        self._closed = False
        self.shown: Commit | None = None
        """The commit that is read, as of the last refresh; None while nothing can be read. Another refresh, another
        object."""
        self.notice = NoticeView(notice_path)
        try:
            scratch_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._generation = self._number = self._proven = 0
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> Position:
        """The committed Position as of the last refresh."""
        return self._open().commit.position

    @property
    def layout(self) -> Layout:
        """The form of the rows: the kind of store and its segments."""
        return self._open().layout

    @property
    def types(self) -> StoreTypes | None:
        """The types of keys and values, None if the store does not say them."""
        return self._open().types

    @property
    def stream_time_ms(self) -> int:
        """The committed stream time as of the last refresh."""
        return self._open().commit.stream_time_ms

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        """The committed changelog offsets, each of the last record applied, as of the last refresh."""
        return self._open().commit.offsets

    @property
    def commit_number(self) -> int:
        """The number of the commit that is read, as of the last refresh."""
        return self._open().commit.number

    @property
    def shown_number(self) -> int:
        """The number of the commit that was read last, 0 before the first, also while nothing can be read."""
        return self._number

    @property
    def generation(self) -> int:
        """The owner's opening that is read, as of the last refresh. A commit number belongs to one generation."""
        return self._generation

    @property
    def is_behind(self) -> bool:
        """Whether a commit or an opening was announced since the last refresh."""
        if self._closed:
            raise StoreClosedError(f"This reader of {self._directory} is closed: make a new one.")
        slots = self.notice.slots
        return slots[1] != self._generation or slots[2] > self._number or self._secondary is None

    def refresh(self, *, files: bool = False) -> None:
        """Reflect at least the newest announced commit. Without a new one, it costs nothing. `files`: also release
        files that the owner has replaced since, for example by compactions. Then a commit that is made and not
        announced yet is reflected too.

        Raises `NotPresentError` if the store was wiped or deleted, `NewerFormatError` if a newer version owns it now,
        `RetryLaterError` if the owner changed it faster than it could be read. Nothing can be read then until a refresh
        succeeds.
        """
        if self.is_behind or files:
            self._follow()

    def get(self, key: bytes) -> bytes | None:
        """Return the committed value as of the last refresh, None if there is none."""
        secondary = self._secondary or self._open()
        try:
            value: bytes | None = secondary.db.get(key)
        except Exception as error:  # rocksdict raises nothing narrower
            if not isinstance(key, bytes):
                raise no_key(key) from error
            return self._get_anew(key, translated(error, self._directory))
        return value

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows of this range in key order. The scan keeps its rows, across refreshes and even across
        `close`."""
        return scan_rows(self._open().db, keys, self._directory, reverse=reverse, cached=not self._scans_much)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""
        return estimated_rows(self._open().db, self._directory)

    def rows_at_least(self) -> int:
        """Return how many rows there are for certain. It may be far less than all."""
        return rows_at_least(self._open().db, self._directory)

    def close(self) -> None:
        """Release everything, also the scratch files. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        self.notice.close()
        with contextlib.suppress(OSError):  # not empty: another reader uses it as well
            self._scratch.rmdir()

    def _open(self) -> RocksDBSecondary:
        if self._secondary is None:
            if self._closed:
                raise StoreClosedError(f"This reader of {self._directory} is closed: make a new one.")
            raise NotPresentError(f"{self._directory} could not be read at the last refresh: refresh again.")
        return self._secondary

    def _follow(self) -> None:
        """Catch up or open again, until the read state is the announced one."""
        failure: StatelineError | None = None
        for _ in range(_ATTEMPTS):
            generation, wanted = self._announced()
            try:
                secondary = self._moved(generation, again=failure is not None)
            except NewerFormatError as error:
                failure = error
                break
            except StatelineError as error:
                failure = error
                continue
            if secondary.commit.number >= wanted and self.notice.generation == generation:
                self._generation, self._number = generation, secondary.commit.number
                self.shown = secondary.commit
                return
            failure = RetryLaterError(
                f"{self._directory} shows commit {secondary.commit.number}, but {wanted} is announced."
            )
        # Half moved, data and position could disagree: nothing is answered until a refresh has succeeded.
        self._drop()
        if isinstance(failure, NotPresentError | NewerFormatError):
            raise failure
        raise RetryLaterError(f"{self._directory} cannot be read just now: {failure} Ask again.") from failure

    def _moved(self, generation: int, *, again: bool) -> RocksDBSecondary:
        """Return a secondary of this generation that has caught up just now. `again`: a first try has failed."""
        secondary = self._secondary
        if secondary is not None and secondary.generation == generation:
            files = OwnerFiles.of(self._directory)
            if secondary.can_catch_up(files):
                secondary.catch_up(files, last_chance=again)
                return secondary
        self._drop()
        proven = generation == self._proven
        self._secondary = RocksDBSecondary(self._directory, self._scratch, generation, proven=proven)
        self._proven = generation  # not before: an opening that was refused has proven nothing
        return self._secondary

    def _announced(self) -> tuple[int, int]:
        """Return generation and commit number of the notice. A withdrawn notice is looked up by its path again."""
        if self.notice.generation == 0:
            self._drop()
            self.notice.look_again()
        if self.notice.generation == 0:
            raise NotPresentError(f"{self._directory} holds no store now: its owner has yet to open it. Ask again.")
        return self.notice.generation, self.notice.commit_number

    def _get_anew(self, key: bytes, error: Exception) -> bytes | None:
        """Read after a failure, for example because a file is gone, from a new opening of the same commit."""
        if not isinstance(error, StatelineError):
            raise error
        number = self._open().commit.number
        self._drop()
        self.refresh()
        if self._number != number:
            raise RetryLaterError(f"{self._directory} moved on while it was read: ask again.") from error
        try:
            value: bytes | None = self._open().db.get(key)
        except Exception as second:
            raise translated(second, self._directory) from second
        return value

    def _drop(self) -> None:
        secondary, self._secondary, self.shown = self._secondary, None, None
        if secondary is not None:
            secondary.close()
