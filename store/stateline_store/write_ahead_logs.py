"""Whether a database's write-ahead logs follow each other without a gap, and what to do when they do not.

RocksDB syncs a log when the memtable that it belongs to is flushed, and writes the next one meanwhile. A power cut in
between can leave the older log short, or take it away, and keep the newer one. RocksDB stops at a record that is cut
in two; but where a log ends at a record's end, has zeros in it, or is gone, it goes on with what comes next, and shows
the newest commit without those before it (wal_recovery_mode does not help; its tracking of logs in the manifest is
not reachable through rocksdict 0.3.29).

    record := sequence:u64 count:u32 writes       little-endian; a WriteBatch (db/write_batch.cc)

A write takes one sequence number and none is left out, so a record begins where the one before it ended, in the next
log too, and the first log begins where the tables end. Only the end of the last log is nobody's to miss: with it the
newest commits are lost, from the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stateline_store.durable_files import sync_directory
from stateline_store.errors import DamagedDataError, RetryLaterError
from stateline_store.log_records import read_records
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


def refuse_holes(directory: Path) -> None:
    """For readers, which mend nothing: raises `DamagedDataError` when something is missing in these logs, and
    `RetryLaterError` when that cannot be told because the owner is writing. What else is wrong is RocksDB's to say.
    """
    if hole := _find_hole(directory):
        raise DamagedDataError(
            f"The store in {directory} has lost a part of its write-ahead logs: {_named(hole)}. Its worker mends that "
            "when it opens the store: start the worker, then ask again."
        )


def close_holes(directory: Path) -> None:
    """For the owner, before RocksDB opens: take away what is behind a hole, so that the newest commit before it shows.

    Raises `DamagedDataError` when tables hold a part of a commit that the logs have lost, `RetryLaterError` when
    another process is writing there, `OSError` when the file system refuses.
    """
    hole = _find_hole(directory)
    if hole is None:
        return
    behind = [number for number in _logs(directory) if number >= hole.log]
    lost = max((_newest_commit(directory, number) for number in behind), default=0)
    _log.warning(
        "%s has lost a part of its write-ahead logs (a power cut, or a fault of the disk): %s. The store goes back to "
        "the newest commit before that; those behind it, up to commit %d, are dropped and come again from its "
        "changelog or topic.",
        *(directory, _named(hole), lost),
    )
    for number in reversed(behind):  # the newest first: half way, the hole is still there to be found
        if number == hole.log and hole.length:
            _cut(_log_path(directory, number), hole.length)
        else:
            _log_path(directory, number).unlink()
    sync_directory(directory)  # a log that came back later could be taken for one of those that are written now
    _find_hole(directory)  # what is left can be less than the tables hold


def _find_hole(directory: Path) -> Hole | None:
    try:
        try:
            path = manifest_path(directory)
            size, manifest = path.stat().st_size, read_manifest(path)
        except OSError:
            return None  # no database, or half of one: RocksDB says what is wrong
        hole, ahead = _compare(directory, manifest)
    except ValueError as error:
        _log.warning("%s: whether its write-ahead logs are complete cannot be told: %s.", directory, error)
        return None
    except FileNotFoundError as error:
        raise RetryLaterError(f"{error.filename} is gone: {directory} is being written just now. Ask again.") from error
    if not (hole or ahead):
        return None
    if (manifest_path(directory), path.stat().st_size) != (path, size):  # a flush has ended, and logs went
        raise RetryLaterError(f"{directory} is being written just now: ask again.")
    if hole is None:
        raise damaged(directory, "its tables hold a part of a commit that its write-ahead logs have lost")
    return hole


def _compare(directory: Path, manifest: Manifest) -> tuple[Hole | None, bool]:
    """The first hole, and whether a column family was flushed further than the logs of another one go."""
    is_uneven = manifest.first_log < manifest.flushed_log  # then where the first log has to begin is not known
    expected, reached = 0 if is_uneven else manifest.last_sequence + 1, 0
    for number in _logs(directory, manifest.first_log):
        length = 0
        for sequence, count, end in _batches(directory, number):
            if sequence > expected > 0:
                return Hole(number, length, (expected, sequence - 1)), False
            expected, length = max(expected, sequence + count), end
        if number < manifest.flushed_log:
            reached = expected
    return None, is_uneven and reached <= manifest.last_sequence


def _batches(directory: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Of each record of a log its sequence number, how many writes it has, and the log's length up to its end."""
    for record, end in read_records(_log_path(directory, number)):
        if len(record) < _RECORD.size:
            return
        sequence, count = _RECORD.unpack_from(record)
        if sequence >= _SEQUENCES:
            return
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


def _cut(log: Path, length: int) -> None:
    with log.open("rb+") as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _named(hole: Hole) -> str:
    first, last = hole.missing
    return f"writes {first} to {last} are missing before byte {hole.length} of {hole.log:06}.log"
