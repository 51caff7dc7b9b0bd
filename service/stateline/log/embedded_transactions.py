"""Appends to the embedded log, and computes which records a reader may see.

The records of a transaction that was flushed before its commit are in the file. Rows of `open_ranges` hide them, and
all later records of their partitions, from readers. The end of a transaction takes one offset in each partition, like
Kafka's marker. The next reader aborts a transaction that is open past its timeout, and fences its producer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from stateline.log.embedded_file import OFFSET_BITS, LogFile, monotonic_ms
from stateline_store import DoesNotExistError, FencedError

MAX_TRANSACTION_TIMEOUT_MS = 900_000  # Kafka's transaction.max.timeout.ms

Row = tuple[int, bytes | None, bytes | None, bytes | None]  # timestamp_ms, key, value, encoded headers


def append(sql: sqlite3.Connection, partition_id: int, rows: Sequence[Row]) -> int:
    """Write these rows at the end of a partition, in a write transaction. Return the first offset. Raises
    `DoesNotExistError` if the partition was deleted. Roll the transaction back then."""
    first = _reserve(sql, partition_id, len(rows))
    if first is None:
        raise DoesNotExistError(f"Partition id {partition_id} was deleted: nothing was written.")
    ids = count((partition_id << OFFSET_BITS) + first)
    with_ids = ((id_, *row) for id_, row in zip(ids, rows, strict=False))
    sql.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", with_ids)
    return first


def _reserve(sql: sqlite3.Connection, partition_id: int, offsets: int) -> int | None:
    query = "UPDATE partitions SET end_offset = end_offset + ? WHERE id = ? RETURNING end_offset"
    row = sql.execute(query, (offsets, partition_id)).fetchall()
    return int(row[0][0]) - offsets if row else None


def raise_epoch(sql: sqlite3.Connection, transactional_id: str) -> int:
    """Fence every producer of this id and abort its transaction, in a write transaction. Return the new epoch."""
    _abort(sql, transactional_id)
    query = "INSERT INTO producers VALUES (?, 0) ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch"
    return int(sql.execute(query, (transactional_id,)).fetchall()[0][0])


def check_epoch(sql: sqlite3.Connection, transactional_id: str, epoch: int) -> None:
    """Raise `FencedError` if a newer producer of this id exists, or if the transaction timed out."""
    query = "SELECT epoch FROM producers WHERE transactional_id = ?"
    if sql.execute(query, (transactional_id,)).fetchall() != [(epoch,)]:
        raise FencedError(
            f"A newer producer of transactional id {transactional_id!r} exists, or the transaction stayed open past "
            "its timeout: close this producer and make a new one."
        )


def hold_back(
    sql: sqlite3.Connection, transactional_id: str, ranges: Mapping[int, tuple[int, int]], timeout_ms: int
) -> None:
    """Hide these offsets (partition id → first, last) from readers until the transaction ends."""
    expires_ms = monotonic_ms() + timeout_ms
    sql.executemany(
        "INSERT INTO open_ranges VALUES (?, ?, ?, ?, ?)",
        ((id_, first, last, transactional_id, expires_ms) for id_, (first, last) in ranges.items()),
    )


def end_transaction(sql: sqlite3.Connection, transactional_id: str, written: Iterable[int]) -> None:
    """Make the transaction visible, and write its end into these partitions (ids), in a write transaction."""
    open_ranges = sql.execute("SELECT partition_id FROM open_ranges WHERE transactional_id = ?", (transactional_id,))
    for partition_id in {*written, *(id_ for (id_,) in open_ranges.fetchall())}:
        _reserve(sql, partition_id, 1)
    sql.execute("DELETE FROM open_ranges WHERE transactional_id = ?", (transactional_id,))


def abort_transaction(sql: sqlite3.Connection, transactional_id: str, epoch: int) -> None:
    """Delete the records of this producer's transaction, in a write transaction."""
    check_epoch(sql, transactional_id, epoch)
    _abort(sql, transactional_id)


def _abort(sql: sqlite3.Connection, transactional_id: str) -> None:
    query = "SELECT partition_id, first_offset, last_offset FROM open_ranges WHERE transactional_id = ?"
    for partition_id, first, last in sql.execute(query, (transactional_id,)).fetchall():
        base = partition_id << OFFSET_BITS
        sql.execute("DELETE FROM records WHERE id BETWEEN ? AND ?", (base + first, base + last))
    end_transaction(sql, transactional_id, ())


def visible_ends(file: LogFile, partition_ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return partition id → (end for read_committed readers, end of the log). Deleted partitions are absent."""
    query = (
        "SELECT id, coalesce(min(open_ranges.first_offset), end_offset), end_offset, min(expires_ms) FROM partitions "
        "LEFT JOIN open_ranges ON partition_id = id "
        f"WHERE id IN ({','.join(map(str, partition_ids))}) GROUP BY id"
    )
    rows = file.rows(query)
    now = monotonic_ms()
    if any(expires_ms is not None and _is_expired(expires_ms, now) for *_, expires_ms in rows):
        with file.write() as sql:
            ranges = sql.execute("SELECT DISTINCT transactional_id, expires_ms FROM open_ranges").fetchall()
            for transactional_id in {id_ for id_, expires_ms in ranges if _is_expired(expires_ms, now)}:
                raise_epoch(sql, transactional_id)
        rows = file.rows(query)
    return {partition_id: (visible, end) for partition_id, visible, end, _ in rows}


def _is_expired(expires_ms: int, now_ms: int) -> bool:
    """Return whether the time has passed. A time too far ahead is from before a restart of the machine."""
    return not now_ms < expires_ms <= now_ms + MAX_TRANSACTION_TIMEOUT_MS
