"""Scans over row keys that are a key of any length and a suffix of one fixed length (`windowed_keys`), in segments.

Because lengths differ, the rows of one key are not all neighbours: between those of ``a`` can lie one of ``a…``, whose
further bytes sort like a suffix. So these scans give every row that is asked for and, rarely, others: the caller
filters (by length for one key, by the key itself for many).
"""

from __future__ import annotations

from stateline_store.engine import no_key
from stateline_store.readers import Reader
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.segments import scan_segments

_NOTHING = KeyRange(b"", b"")


def scan_nothing(reader: Reader) -> StoreIterator:
    """No rows; asks the store all the same, so that a closed one says that it is closed."""
    return reader.scan(_NOTHING)


def scan_key(
    reader: Reader, segments: range, key: bytes, least: bytes, greatest: bytes, *, reverse: bool
) -> StoreIterator:
    """The rows of one key with suffixes from `least` to `greatest`, both included. Rows of this key are the ones with
    ``len(key) + len(least)`` bytes. Raises `InvalidArgumentError` unless the key is bytes."""
    if not isinstance(key, bytes):
        raise no_key(key)
    if not segments:
        return scan_nothing(reader)
    return scan_segments(reader, segments, key + least, key + greatest + b"\0", reverse=reverse)


def scan_keys(
    reader: Reader, segments: range, lower: bytes | None, upper: bytes | None, greatest: bytes, *, reverse: bool
) -> StoreIterator:
    """The rows of the keys from `lower` to `upper`, both included, None open, whose suffixes are at most `greatest`.

    `lower` above `upper` gives none and logs a warning. Raises `InvalidArgumentError` unless both are bytes or None.
    """
    if KeyRange.between(lower, upper).is_empty or not segments:
        return scan_nothing(reader)
    end = None if upper is None else end_of_keys(upper, greatest)
    return scan_segments(reader, segments, lower or b"", end, reverse=reverse)


def end_of_keys(upper: bytes, greatest: bytes) -> bytes:
    """The end (excluded) of the rows of all keys up to `upper` with suffixes up to `greatest`.

    The last such row is that of `upper` itself or of one of its prefixes, whose suffix may sort behind the bytes that
    `upper` goes on with: of all these rows it is the greatest. (Kafka Streams' `OrderedBytes.upperRange` misses some:
    for keys with zero bytes, of which another key is a prefix.)
    """
    width, cut = len(greatest), len(upper)
    for at in range(len(upper) - 1, -1, -1):
        if greatest > (upper[at : min(cut, at + width)] + greatest)[:width]:
            cut = at
    return upper[:cut] + greatest + b"\0"
