"""Whether a database's write-ahead logs follow each other without a gap, and what to do when they do not.

RocksDB syncs a log when the memtable that it belongs to is flushed, and writes the next one meanwhile. A power cut in
between can leave the older log short, or take it away, and keep the newer one. RocksDB stops at a record that is cut
in two; but where a log ends at a record's end, has zeros in it, or is gone, it goes on with what comes next, and shows
the newest commit without those before it (wal_recovery_mode does not help; its tracking of logs in the manifest is
not reachable through rocksdict 0.3.29).

    record := sequence:u64 count:u32 writes       little-endian; a WriteBatch (db/write_batch.cc)

A write takes one sequence number and none is left out, so a record begins where the one before it ended, in the next
log too, and the first log begins where the tables end, as the manifest says, which is believed. What cannot be read of
a log is its end, as for RocksDB; but RocksDB may never come back from it (one bit that makes a record's type one of
recycled logs is enough, for owners and readers), so it is cut off. Only the end of the last log is nobody's to miss:
with it the newest commits are lost, from the end.
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

from stateline_store.durable_files import sync_directory, sync_file
from stateline_store.errors import DamagedDataError, NewerFormatError, RetryLaterError
from stateline_store.log_records import BLOCK_BYTES, UnreadableLogError, read_records
from stateline_store.manifest import Manifest, manifest_path, read_manifest
from stateline_store.rocksdb_errors import damaged

_RECORD = struct.Struct("<QI")
_SEQUENCES = 1 << 56  # RocksDB keeps a sequence number in 56 bits
_COMMIT_NUMBER = b"\x0dcommit_number\x08"  # as a write has it: each length before its bytes (`rocksdb_rows.py`)
_log = logging.getLogger(__name__)


class Hole(NamedTuple):
    """A place in the logs behind which something is missing."""

    log: int
    """The log that does not begin, or go on, where it should."""
    length: int
    """The bytes of it that come before the hole."""
    missing: tuple[int, int]
    """The first and the last sequence number that are nowhere."""

    def __str__(self) -> str:
        first, last = self.missing
        return f"writes {first} to {last} are missing before byte {self.length} of {self.log:06}.log"


class Damage(NamedTuple):
    """What is wrong with the logs of a database."""

    directory: Path
    hole: Hole | None
    """The first one."""
    unreadable: Mapping[int, int]
    """Of each log before the hole that goes on with what is no record, the bytes that come before that."""

    @property
    def lengths(self) -> dict[Path, int]:
        """The logs that RocksDB must not read to their ends, as it may never come back, and how far it may."""
        return {_log_path(self.directory, number): length for number, length in self.unreadable.items()}

    def __str__(self) -> str:
        ends = (f"{number:06}.log has what is no record at byte {at}" for number, at in self.unreadable.items())
        return ", ".join([*ends, *([str(self.hole)] if self.hole else [])])


def refuse_holes(directory: Path) -> None:
    """For readers, which mend nothing: raises `DamagedDataError` when something is missing in these logs, or there is
    what is no record, `NewerFormatError` when another RocksDB wrote them, `RetryLaterError` when that cannot be told
    because the owner is writing. What else is wrong is RocksDB's to say.
    """
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
    """For the owner, before RocksDB opens: what is to be mended (`put_aside`). What this does not know, it leaves to
    RocksDB, with a warning.

    Raises `DamagedDataError` when tables hold a part of a commit that the logs have lost, `RetryLaterError` when
    another process is writing there. Nothing is changed.
    """
    try:
        return _find_damage(directory)
    except ValueError as error:
        _log.warning("%s: whether its write-ahead logs are complete cannot be told: %s.", directory, error)
        return None


def put_aside(damage: Damage, restored_from: object | None) -> None:
    """Take away what is behind a hole, and what is no record, so that the newest commit before it shows. Logs that lose
    something are kept as they were, in a new folder ``lost-<random>`` of the database, which the warning names.
    `restored_from` brings the commits again; None: nothing does.

    Raises `OSError` when the file system refuses: the damage is still there to be found then.
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
    """Raises `ValueError` for what is not known here, else as `find_damage` does."""
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
    """What is wrong, and whether a column family was flushed further than the logs of another one go, up to a hole."""
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
    """Raises `UnreadableLogError` unless a record with the right checksum is between here and there."""
    path = _log_path(directory, number)
    if not any(each >= end for _, each in read_records(path, begin - begin % BLOCK_BYTES, checked=True)):
        raise UnreadableLogError(path, begin)


def _batches(directory: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Of each record of a log its sequence number, how many writes it has, and the log's length up to its end."""
    for record, end in read_records(_log_path(directory, number)):
        sequence, count = _RECORD.unpack_from(record) if len(record) >= _RECORD.size else (_SEQUENCES, 0)
        if sequence >= _SEQUENCES:
            raise UnreadableLogError(_log_path(directory, number), end - len(record))
        yield sequence, count, end


def _newest_commit(directory: Path, number: int) -> int:
    """The number of the newest commit in this log, 0 for none."""
    newest = 0
    with contextlib.suppress(ValueError):
        for record, _ in read_records(_log_path(directory, number)):
            at = record.rfind(_COMMIT_NUMBER) + len(_COMMIT_NUMBER)
            if at >= len(_COMMIT_NUMBER):
                newest = max(newest, int.from_bytes(record[at : at + 8], "big"))
    return newest


def _logs(directory: Path, first: int = 0) -> list[int]:
    """The numbers of the logs that are there, in their order."""
    numbers = (int(name[:-4]) for name in os.listdir(directory) if name.endswith(".log") and name[:-4].isdecimal())
    return sorted(number for number in numbers if number >= first)


def _log_path(directory: Path, number: int) -> Path:
    return directory / f"{number:06}.log"


def _cut(log: Path, length: int, aside: Path) -> None:
    """Shorten it; as it was, it is kept."""
    shutil.copy2(log, aside)
    sync_file(aside / log.name)
    sync_directory(aside)
    os.truncate(log, length)
    sync_file(log)
