"""Checks that a database's write-ahead logs follow each other without a gap, and mends them otherwise.

RocksDB syncs a log when its memtable is flushed, and writes the next log meanwhile. A power cut in between can leave
the older log short, or remove it, and keep the newer one. RocksDB stops at a record that is cut in two. But if a log
ends at a record's end, has zeros in it, or is gone, RocksDB continues with the next log, and shows the newest commit
without the commits before it (wal_recovery_mode does not help; its tracking of logs in the manifest is not reachable
through rocksdict 0.3.29).

    record := sequence:u64 count:u32 writes       little-endian; a WriteBatch (db/write_batch.cc)

A write takes one sequence number, and none is left out. So a record begins where the one before it ended, in the next
log too. The first log begins where the tables end, by the manifest, which is believed. Unreadable bytes of a log are
its end, as for RocksDB. But RocksDB may hang at them (one bit that makes a record's type one of recycled logs is
enough, for owners and readers), so they are cut off. Only the end of the last log may be missing: then the newest
commits are lost, from the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stateline_store.errors import DamagedDataError, NewerFormatError, RetryLaterError
from stateline_store.files.durable_files import sync_directory, sync_file
from stateline_store.rocksdb.errors import damaged
from stateline_store.rocksdb.manifest import Manifest, manifest_path, read_manifest
from stateline_store.rows.log_records import BLOCK_BYTES, UnreadableLogError, read_records

_RECORD = struct.Struct("<QI")
_SEQUENCES = 1 << 56  # RocksDB keeps a sequence number in 56 bits
_COMMIT_NUMBER = b"\x0dcommit_number\x08"  # as a write has it: each length before its bytes (`rocksdb_rows.py`)
_log = logging.getLogger(__name__)


class Hole(NamedTuple):
    """A place in the logs behind which something is missing."""

    log: int
    """The log that does not begin or continue where it should."""
    length: int
    """The bytes of it that come before the hole."""
    missing: tuple[int, int]
    """The first and the last sequence number that are nowhere."""

    def __str__(self) -> str:
        first, last = self.missing
        return f"writes {first} to {last} are missing before byte {self.length} of {self.log:06}.log"


class Damage(NamedTuple):
    """The damage of a database's logs."""

    directory: Path
    hole: Hole | None
    """The first one."""
    unreadable: Mapping[int, int]
    """By log before the hole that has bytes that are no record: the number of bytes before these."""

    @property
    def lengths(self) -> dict[Path, int]:
        """The lengths up to which RocksDB may read these logs. It may hang behind them."""
        return {_log_path(self.directory, number): length for number, length in self.unreadable.items()}

    def __str__(self) -> str:
        ends = (f"{number:06}.log has what is no record at byte {at}" for number, at in self.unreadable.items())
        return ", ".join([*ends, *([str(self.hole)] if self.hole else [])])


def refuse_holes(directory: Path) -> None:
    """Refuse damaged logs, for readers. Raises `DamagedDataError` if a part of these logs is missing or is no record,
    `NewerFormatError` if another RocksDB wrote them, `RetryLaterError` if the owner is writing. RocksDB reports other
    damage."""
    try:
        damage = _find_damage(directory)
    except UnreadableLogError as error:
        raise NewerFormatError(f"{error}. A newer version of Stateline wrote it: run that one.") from error
    except ValueError as error:
        raise DamagedDataError(
            f"Whether the write-ahead logs in {directory} are complete cannot be told: {error}. Its worker knows more: "
            "start the worker, then ask again; if a newer version of Stateline wrote it, run that one."
        ) from error
    if damage is not None:
        raise DamagedDataError(
            f"The store in {directory} has lost a part of its write-ahead logs: {damage}. Its worker mends that when "
            "it opens the store: start the worker, then ask again."
        )


def find_damage(directory: Path) -> Damage | None:
    """Return the damage for `put_aside` to mend, before the owner opens RocksDB. Unknown content is left to RocksDB,
    with a warning.

    Raises `DamagedDataError` if tables hold a part of a commit that the logs have lost, `RetryLaterError` if another
    process is writing there. Nothing is changed.
    """
    try:
        return _find_damage(directory)
    except ValueError as error:
        _log.warning("%s: whether its write-ahead logs are complete cannot be told: %s.", directory, error)
        return None


def put_aside(damage: Damage, restored_from: object | None) -> None:
    """Remove the logs behind a hole, and bytes that are no record, so that the newest commit before it shows. Changed
    logs are kept in a new folder ``lost-<random>`` of the database, which the warning names. `restored_from` brings the
    commits again, unless it is None.

    Raises `OSError` when the file system refuses. The damage can then be found again.
    """
    directory, hole = damage.directory, damage.hole
    behind = [number for number in _logs(directory) if hole and number >= hole.log]
    lost = max((_newest_commit(directory, number) for number in behind), default=0)
    aside = Path(tempfile.mkdtemp(prefix="lost-", dir=directory))
    _log.warning(
        "%s has lost a part of its write-ahead logs (a power cut, or a fault of the disk): %s. The store goes back to "
        "the newest commit before that; those that were behind it%s %s. Their logs are kept in %s until you delete "
        "them.",
        *(directory, damage, f", up to commit {lost}," if lost else ", if any,"),
        f"come again from {restored_from}" if restored_from else "are lost for good: nothing brings them again",
        aside,
    )
    for number in reversed(behind):  # the newest first: half way, the hole is still there to be found
        if hole and number == hole.log and hole.length:
            _cut(_log_path(directory, number), hole.length, aside)
        else:
            _log_path(directory, number).rename(aside / _log_path(directory, number).name)
        sync_directory(directory)  # a log that came back later could be taken for one of those that are written now
    for log, length in damage.lengths.items():
        _cut(log, length, aside)
    sync_directory(aside)


def _find_damage(directory: Path) -> Damage | None:
    """Raise `ValueError` for unknown content, else return and raise as `find_damage`."""
    try:
        path = manifest_path(directory)
        size, manifest = path.stat().st_size, read_manifest(path)
    except OSError:
        return None  # no database, or half of one: RocksDB says what is wrong
    try:
        damage, ahead = _compare(directory, manifest)
    except FileNotFoundError as error:
        raise RetryLaterError(f"{error.filename} is gone: {directory} is being written just now. Ask again.") from error
    if not (damage.hole or damage.unreadable or ahead):
        return None
    if (manifest_path(directory), path.stat().st_size) != (path, size):  # a flush has ended, and logs went
        raise RetryLaterError(f"{directory} is being written just now: ask again.")
    if ahead:
        raise damaged(directory, "its tables hold a part of a commit that its write-ahead logs have lost")
    return damage


def _compare(directory: Path, manifest: Manifest) -> tuple[Damage, bool]:
    """Return the damage, and whether a column family was flushed beyond the logs of another one, up to a hole."""
    is_uneven = manifest.first_log < manifest.flushed_log  # then where the first log has to begin is not known
    expected, reached = 0 if is_uneven else manifest.last_sequence + 1, 0
    unreadable: dict[int, int] = {}
    hole: Hole | None = None
    for number in _logs(directory, manifest.first_log):
        length = 0
        try:
            for sequence, count, end in _batches(directory, number):
                if sequence > expected > 0:
                    _check(directory, number, length, end)
                    hole = Hole(number, length, (expected, sequence - 1))
                    break
                expected, length = max(expected, sequence + count), end
        except UnreadableLogError as error:
            if error.is_newer:
                raise
            unreadable[number] = length  # what it had behind this, the next log shows
        if number < manifest.flushed_log:
            reached = expected
        if hole:
            break
    return Damage(directory, hole, unreadable), is_uneven and reached <= manifest.last_sequence


def _check(directory: Path, number: int, begin: int, end: int) -> None:
    """Raise `UnreadableLogError` unless a record with the right checksum is between here and there."""
    path = _log_path(directory, number)
    if not any(each >= end for _, each in read_records(path, begin - begin % BLOCK_BYTES, checked=True)):
        raise UnreadableLogError(path, begin)


def _batches(directory: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Yield each record's sequence number, its number of writes, and the log's length up to its end."""
    for record, end in read_records(_log_path(directory, number)):
        sequence, count = _RECORD.unpack_from(record) if len(record) >= _RECORD.size else (_SEQUENCES, 0)
        if sequence >= _SEQUENCES:
            raise UnreadableLogError(_log_path(directory, number), end - len(record))
        yield sequence, count, end


def _newest_commit(directory: Path, number: int) -> int:
    """Return the number of the newest commit in this log, 0 for none."""
    newest = 0
    with contextlib.suppress(ValueError):
        for record, _ in read_records(_log_path(directory, number)):
            at = record.rfind(_COMMIT_NUMBER) + len(_COMMIT_NUMBER)
            if at >= len(_COMMIT_NUMBER):
                newest = max(newest, int.from_bytes(record[at : at + 8], "big"))
    return newest


def _logs(directory: Path, first: int = 0) -> list[int]:
    numbers = (int(name[:-4]) for name in os.listdir(directory) if name.endswith(".log") and name[:-4].isdecimal())
    return sorted(number for number in numbers if number >= first)


def _log_path(directory: Path, number: int) -> Path:
    return directory / f"{number:06}.log"


def _cut(log: Path, length: int, aside: Path) -> None:
    """Shorten the log, and keep the original."""
    shutil.copy2(log, aside)
    sync_file(aside / log.name)
    sync_directory(aside)
    os.truncate(log, length)
    sync_file(log)
