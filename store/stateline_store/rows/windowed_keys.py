"""Keys of window and session stores: Kafka Streams' bytes, in stores (behind the segment) and in changelogs.

    window key  := key ‖ start:i64 ‖ sequence:i32      sequence 0 unless the store retains duplicates
    session key := key ‖ end:i64 ‖ start:i64           the end comes first

Source: `WindowKeySchema` and `SessionKeySchema` of Kafka Streams. On disk and in topics: never change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from stateline_store.errors import DamagedDataError

WINDOW_SUFFIX = struct.Struct(">qi")  # start, sequence
SESSION_SUFFIX = struct.Struct(">qq")  # end, start
MAX_TIMESTAMP_MS = 2**63 - 1
MAX_SEQUENCE = 2**31 - 1


class Windowed(NamedTuple):
    """A key and a window of it. `start_ms` is included. `end_ms` of a tumbling or hopping window is excluded. `end_ms`
    of a session is the timestamp of its last record and included, as in Kafka Streams."""

    key: bytes
    start_ms: int
    end_ms: int


def window_key(key: bytes, start_ms: int, sequence: int = 0) -> bytes:
    """Return the bytes of a window's key. Raises `struct.error` for a number that does not fit."""
    return key + WINDOW_SUFFIX.pack(start_ms, sequence)


def split_window_key(data: bytes) -> tuple[bytes, int, int]:
    """Return (key, start in ms, sequence). Raises `DamagedDataError` for too few bytes."""
    if len(data) < WINDOW_SUFFIX.size:
        raise DamagedDataError(f"{data!r:.100} is no key of a window store: it is too short.")
    return data[: -WINDOW_SUFFIX.size], *WINDOW_SUFFIX.unpack_from(data, len(data) - WINDOW_SUFFIX.size)


def session_key(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Return the bytes of a session's key. Raises `struct.error` for a number that does not fit."""
    return key + SESSION_SUFFIX.pack(end_ms, start_ms)


def split_session_key(data: bytes) -> Windowed:
    """Return the key, the session's start and its end. Raises `DamagedDataError` for too few bytes."""
    if len(data) < SESSION_SUFFIX.size:
        raise DamagedDataError(f"{data!r:.100} is no key of a session store: it is too short.")
    end_ms, start_ms = SESSION_SUFFIX.unpack_from(data, len(data) - SESSION_SUFFIX.size)
    return Windowed(data[: -SESSION_SUFFIX.size], start_ms, end_ms)


def split_keys(
    rows: Sequence[tuple[bytes, object]], suffix: struct.Struct, skipped: int = 0
) -> tuple[list[bytes], Sequence[int], Sequence[int]]:
    """Split stored rows into three columns: keys, and the two numbers of their suffixes. A column takes a third of the
    time that splitting each row takes. `skipped` bytes stand before each key. Raises `DamagedDataError` for bytes that
    are too few."""
    width = suffix.size
    stored = list(map(itemgetter(0), rows))
    if stored and len(shortest := min(stored, key=len)) < skipped + width:
        raise DamagedDataError(f"{shortest!r:.100} is no key of a window or session store: it is too short.")
    numbers = list(chain.from_iterable(suffix.iter_unpack(b"".join([name[-width:] for name in stored]))))
    return [name[skipped:-width] for name in stored], numbers[::2], numbers[1::2]


_windowed = partial(tuple.__new__, Windowed)  # without a call of Python's


def windowed_rows(
    keys: Iterable[bytes], starts: Iterable[int], ends: Iterable[int], rows: Iterable[tuple[bytes, bytes]]
) -> list[tuple[Windowed, bytes]]:
    """Columns, and the values of these rows, as rows."""
    return list(zip(map(_windowed, zip(keys, starts, ends, strict=True)), map(itemgetter(1), rows), strict=True))


def are_within(times: Sequence[int], first: int, last: int) -> bool:
    """Whether all of these are from `first` to `last`, both included."""
    return not times or (first <= min(times) and max(times) <= last)


def session_order(row: tuple[Windowed, object]) -> tuple[bytes, int, int]:
    """Return the sort key of a session among the sessions of all keys."""
    key, start_ms, end_ms = row[0]
    return key, end_ms, start_ms
