"""Sort the versions of a store by time, on disk: a restore takes puts in this order, and drops those that are late."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from rocksdict import Rdict

from stateline_store.rocksdb.options import DEFAULT_TUNING, primary_options
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import split
from stateline_store.rows.versioned_rows import LATEST, bounds, versions
from stateline_store.scan import EVERY_KEY, StoreIterator
from stateline_store.state_store import Change

_TIME = struct.Struct(">q")
_GONE, _VALUE = b"\0", b"\1"


def changes_by_time(rows: StoreIterator) -> Iterator[list[Change]]:
    """Yield a put for each version in these rows of a versioned store, in the order of their timestamps. The sorted
    versions lie in a temporary directory until the iterator ends (``TMPDIR``)."""
    with tempfile.TemporaryDirectory(prefix="stateline-versions-") as folder:
        path = Path(folder)
        with closing(Rdict(str(path), primary_options(DEFAULT_TUNING))) as sorted_rows:
            for row, stored in rows:
                key = row[PREFIX.size :]
                if row.startswith(LATEST):
                    value, at_ms = split(stored)
                    sorted_rows[_TIME.pack(at_ms) + key] = _VALUE + value
                    continue
                # A deleted key has no row for its end. Otherwise a later row begins there, and replaces this one.
                sorted_rows[_TIME.pack(bounds(stored)[0]) + key] = _GONE
                for each in versions(stored):
                    content = _GONE if each.value is None else _VALUE + each.value
                    sorted_rows[_TIME.pack(each.timestamp) + key] = content
            with scan_rows(sorted_rows, EVERY_KEY, path, reverse=False, cached=False) as found:
                for chunk in found.chunks():
                    yield [_change(place, content) for place, content in chunk]


def _change(place: bytes, content: bytes) -> Change:
    value = content[1:] if content.startswith(_VALUE) else None
    return Change(place[_TIME.size :], value, _TIME.unpack_from(place)[0])
