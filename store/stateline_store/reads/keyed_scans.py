"""Scans over row keys that are a key of any length and a suffix of one fixed length (`windowed_keys`), in segments.

Because lengths differ, the rows of one key are not all neighbours: between those of ``a`` can lie one of ``a…``, whose
further bytes sort like a suffix. So these scans give every row that is asked for and, rarely, others: the caller
filters (by length for one key, by the key itself for many).
"""

from __future__ import annotations

from stateline_store.engines.engine import no_key
from stateline_store.reads.readers import Reader
from stateline_store.rows.segments import scan_segments
from stateline_store.scan import KeyRange, StoreIterator

_NOTHING = KeyRange(b"", b"")


def scan_nothing(reader: Reader) -> StoreIterator:
    """Return an empty scan. It asks the store all the same, so that a closed store raises."""
    return reader.scan(_NOTHING)


def scan_key(
    reader: Reader, segments: range, key: bytes, least: bytes, greatest: bytes, *, reverse: bool
) -> StoreIterator:
    """Scan the rows of one key with suffixes from `least` to `greatest`, both included. The key's own rows have
    ``len(key) + len(least)`` bytes. Raises `InvalidArgumentError` unless the key is bytes."""
    if not isinstance(key, bytes):
        raise no_key(key)
    if not segments:
        return scan_nothing(reader)
    return scan_segments(reader, segments, key + least, key + greatest + b"\0", reverse=reverse)


def scan_keys(
    reader: Reader, segments: range, lower: bytes | None, upper: bytes | None, greatest: bytes, *, reverse: bool
) -> StoreIterator:
    """Scan the rows of the keys from `lower` to `upper`, both included, None open, whose suffixes are at most
    `greatest`.

    If `lower` is above `upper`, the scan is empty and a warning is logged. Raises `InvalidArgumentError` unless both
    are bytes or None.
    """
    if KeyRange.between(lower, upper).is_empty or not segments:
        return scan_nothing(reader)
    end = None if upper is None else end_of_keys(upper, greatest)
    return scan_segments(reader, segments, lower or b"", end, reverse=reverse)


def end_of_keys(upper: bytes, greatest: bytes) -> bytes:
    """Return the end (excluded) of the rows of all keys up to `upper` with suffixes up to `greatest`.

    The last such row is that of `upper` itself or of one of its prefixes. The prefix's suffix may sort behind the next
    bytes of `upper`. The end is above the greatest of these rows. (Kafka Streams' `OrderedBytes.upperRange` misses
    some, for keys with zero bytes that another key is a prefix of.)
    """
    width, cut = len(greatest), len(upper)
    for at in range(len(upper) - 1, -1, -1):
        if greatest > (upper[at : min(cut, at + width)] + greatest)[:width]:
            cut = at
    return upper[:cut] + greatest + b"\0"
