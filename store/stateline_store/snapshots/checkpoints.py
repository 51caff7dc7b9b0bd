"""Checkpoints: a store's committed state of one moment, kept by hard links to the files of its database.

The owner makes one between two commits (`link_database`). It flushes and copies nothing, so the time depends on the
number of files: a flush of a full memtable takes longer than a snapshot may (RocksDB's own Checkpoint always flushes
through rocksdict; measured: 245 ms against 2 ms). RocksDB only ever appends to its manifest and its write-ahead logs,
and changes no other file under its name. So a link to an appended file, and its length at that moment, are the file of
that moment, whatever is appended later. Readers cut such files at these lengths (`Checkpoint`).

Background work of the database (a flush, a compaction) may run meanwhile. Its result is in the manifest before it
deletes a file. So links that were made while manifest and logs did not change are one state. All others are made again.

An opening verifies the checkpoint: its own rows must show the announced commit and Position.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rocksdict import AccessType, Rdict

from stateline_store.engines.engine import Commit
from stateline_store.errors import DamagedDataError, NotPresentError, RetryLaterError
from stateline_store.files.directory import DIRECTORY_MODE
from stateline_store.files.durable_files import refused
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import Position
from stateline_store.reads.splits import Split, TableFile, splits
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.options import secondary_options
from stateline_store.rocksdb.rows import OFFSETS_FAMILY, read_commit, written_format
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rocksdb.write_ahead_logs import refuse_holes
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.steps import reached

_ATTEMPTS = 20  # each fails only when a flush or a compaction ends within its few milliseconds
_READING = ".reading-"  # on disk: never change; files of an opening that was interrupted
_COPY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """One store partition of a snapshot. Thread-safe: it never changes. `directory` is relative to the snapshot's.
    `lengths` has the bytes that count of files that grow. JSON as `to_json` writes it, on disk: never change."""

    store: str
    partition: int
    directory: str
    commit: int
    committed_at_ms: int
    position: Position
    lengths: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "store": self.store,
            "partition": self.partition,
            "directory": self.directory,
            "commit": self.commit,
            "committed_at_ms": self.committed_at_ms,
            "position": self.position.to_json(),
            "lengths": dict(self.lengths),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointPart:
        """Read the JSON object. Raises `DamagedDataError` for anything else."""
        try:
            return cls(
                str(value["store"]),
                int(value["partition"]),
                str(value["directory"]),
                int(value["commit"]),
                int(value["committed_at_ms"]),
                Position.from_json(value["position"]),
                {str(name): int(length) for name, length in value["lengths"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedDataError(f"{value!r:.200} is no part of a snapshot ({error!r}): make a new one.") from error


def link_database(database: Path, target: Path) -> dict[str, int]:
    """Link the files of this database into the new directory `target`, whose parent must exist. Returns the lengths.

    For the owner's thread, between two commits: nothing may be written meanwhile. The state is that of the newest
    commit. Raises `NotPresentError` if there is no database or `target`'s parent is gone, `RetryLaterError` when the
    file system refuses or the files changed all the time. Links made by then stay for the owner of the parent.
    """
    try:
        for _ in range(_ATTEMPTS):
            os.stat(database / "CURRENT")  # without a database this is an error, and any other missing file is none
            target.mkdir(mode=DIRECTORY_MODE)
            with contextlib.suppress(FileNotFoundError):  # a log or a table that was on its way out: look again
                before = _appended(database)
                _link(database, target, before)
                if _appended(database) == before:
                    reached("checkpoint:linked")
                    return before
            shutil.rmtree(target)
    except FileNotFoundError as error:
        raise NotPresentError(f"{error.filename} is gone: there is nothing to make a checkpoint of, or in.") from error
    except OSError as error:
        raise refused(target, "made", error) from error
    raise RetryLaterError(f"{database} was flushed and compacted all the time: try again in a moment.")


class Checkpoint:
    """Reads of an opened checkpoint, which never changes. A context manager.

    Every file is held open, so it can be read to its end also if its directory is deleted meanwhile. The space is freed
    at `close`. Opening replays the logs: about 10 ms per MB of them. Scans may run on several threads, one thread each.
    `close` comes after them.
    """

    def __init__(self, snapshot: Path, part: CheckpointPart) -> None:
        """Open this part of the snapshot in that directory.

        Raises `NotPresentError` if it is deleted, `DamagedDataError` if it does not show its commit (after a power cut,
        because a checkpoint is not synced to the disk), `RetryLaterError` if it may not be read.
        """
        self.part = part
        self._directory = snapshot / part.directory
        try:
            files = Path(tempfile.mkdtemp(prefix=_READING, dir=snapshot))
            try:
                _cut(self._directory, files, part.lengths)
                self._open(files)
            finally:
                shutil.rmtree(files, ignore_errors=True)  # all are open now; what stays goes with the snapshot
        except FileNotFoundError as error:
            raise NotPresentError(f"The checkpoint {self._directory} is deleted.") from error
        except OSError as error:
            raise refused(self._directory, "read", error) from error
        if (self.commit.number, self.commit.position) != (part.commit, part.position):
            self.close()
            raise DamagedDataError(
                f"{self._directory} shows commit {self.commit.number} instead of {part.commit}: make a new snapshot."
            )

    def scan(self, keys: KeyRange) -> StoreIterator:
        """Scan the stored rows of this range in key order. Raises, now or later, `DamagedDataError`."""
        return scan_rows(self._db, keys, self._directory, reverse=False, cached=False)

    def splits(self, size: int) -> list[Split]:
        """Return ranges of stored keys of about so many bytes on disk (`splits.splits`), the same ones each time."""
        try:
            tables = [TableFile(each["start_key"], each["end_key"], each["size"]) for each in self._db.live_files()]
        except Exception as error:
            raise translated(error, self._directory) from error
        return splits(tables, size)

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, files: Path) -> None:
        self._opened = contextlib.ExitStack()
        families = {"default": secondary_options(), OFFSETS_FAMILY: secondary_options()}
        try:
            _refuse_holes(files, self._directory)
            self._db = Rdict(
                str(files), secondary_options(), column_families=families, access_type=AccessType.read_only()
            )
            self._opened.callback(self._db.close)
            offsets = self._db.get_column_family(OFFSETS_FAMILY)
            self._opened.callback(offsets.close)
            self.layout: Layout
            self.types: StoreTypes | None
            _, self.layout, self.types = written_format(offsets, self._directory)
            self.commit: Commit = read_commit(offsets, self._directory)
        except Exception as error:
            self.close()
            raise translated(error, self._directory) from error


def _refuse_holes(files: Path, directory: Path) -> None:
    try:
        refuse_holes(files)
    except DamagedDataError as error:
        raise DamagedDataError(f"{directory} has lost a part of its logs: make a new snapshot.") from error


def _appended(database: Path) -> dict[str, int]:
    """Return the files that grow, the manifest in use and the logs, with their present lengths."""
    manifest = (database / "CURRENT").read_text().strip()
    names = [manifest, *(name for name in os.listdir(database) if name.endswith(".log"))]
    return {name: os.stat(database / name).st_size for name in names}


def _link(database: Path, target: Path, appended: Mapping[str, int]) -> None:
    tables = (name for name in os.listdir(database) if name.endswith(".sst"))
    for name in ("CURRENT", *appended, *tables):
        os.link(database / name, target / name)


def _cut(linked: Path, files: Path, lengths: Mapping[str, int]) -> None:
    """Make the database as it was when it was linked. RocksDB would replay later records of a log."""
    for name in os.listdir(linked):
        if name in lengths:
            _copy_beginning(linked / name, files / name, lengths[name])
        else:
            os.link(linked / name, files / name)


def _copy_beginning(source: Path, target: Path, length: int) -> None:
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        while length > 0:
            piece = old.read(min(length, _COPY_BYTES))
            if not piece:
                raise DamagedDataError(f"{source} is shorter than it was: make a new snapshot.")
            new.write(piece)
            length -= len(piece)
