"""Lists the tables that a manifest of RocksDB names, and takes some out of a copy of it (`manifest.py` has the format).

A reader of some keys needs only the tables that may have them. RocksDB refuses to open a database without one of its
tables. So `drop_tables` appends an edit to the copy that deletes the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stateline_store.errors import DamagedDataError
from stateline_store.rocksdb.manifest import (
    ATOMIC_GROUP,
    COLUMN_FAMILY,
    COLUMN_FAMILY_ADDED,
    COLUMN_FAMILY_DROPPED,
    DELETED_FILE,
    NEW_FILE,
    Fields,
    manifest_path,
    read_fields,
)
from stateline_store.rows.log_records import append_record, read_records
from stateline_store.scan import KeyRange

_SEQUENCE_BYTES = 8  # behind a key in a manifest: sequence number and type


class LiveTable(NamedTuple):
    """A table of a column family (0 is `default`), and the least and the largest key in it."""

    family: int
    level: int
    number: int
    size: int
    first: bytes
    last: bytes
    family_name: str = "default"

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.number:06}.sst"

    def has_keys_in(self, keys: KeyRange) -> bool:
        """Return whether some key from the least to the largest one is in this range."""
        return not keys.is_empty and keys.start <= self.last and (keys.end is None or self.first < keys.end)


def live_tables(directory: Path) -> list[LiveTable]:
    """Return the tables of the database in this directory, of which only the manifest and CURRENT need be there. Raises
    `DamagedDataError` for a manifest that cannot be read to its end."""
    path = manifest_path(directory)
    found, names, group, end = dict[tuple[int, int], LiveTable](), {0: "default"}, list[Fields](), 0
    try:
        for record, end in read_records(path):  # noqa: B007 - the last one is looked at below
            group.append(read_fields(record))
            if not _number_of(group[-1], ATOMIC_GROUP):
                for edit in group:
                    _apply(edit, found, names)
                group.clear()
    except ValueError as error:
        raise DamagedDataError(f"{path} cannot be read: {error}.") from error
    if group or end != path.stat().st_size:
        raise DamagedDataError(f"{path} ends at byte {end} in the middle of an edit.")
    return list(found.values())


def drop_tables(directory: Path, tables: Iterable[LiveTable]) -> None:
    """Take these tables out of the manifest in this directory. RocksDB then opens the database without their files."""
    for family, dropped in itertools.groupby(sorted(tables), key=lambda each: each.family):
        deleted = itertools.chain.from_iterable((DELETED_FILE, each.level, each.number) for each in dropped)
        append_record(manifest_path(directory), b"".join(map(_varint, (COLUMN_FAMILY, family, *deleted))))


def _apply(edit: Fields, found: dict[tuple[int, int], LiveTable], names: dict[int, str]) -> None:
    family = _number_of(edit, COLUMN_FAMILY)
    for tag, values in edit:
        if tag == COLUMN_FAMILY_ADDED:
            names[family] = values[0].decode()
        elif tag == COLUMN_FAMILY_DROPPED:
            for gone in [each for each in found if each[0] == family]:
                del found[gone]
        elif tag == DELETED_FILE:
            found.pop((family, values[1]), None)
    for tag, values in edit:
        if tag == NEW_FILE:
            level, number, size, first, last = values[:5]
            keys = (first[:-_SEQUENCE_BYTES], last[:-_SEQUENCE_BYTES])
            found[family, number] = LiveTable(family, level, number, size, *keys, names[family])


def _number_of(edit: Fields, wanted: int) -> int:
    """Return the number of this field, 0 without one."""
    return next((values[0] for tag, values in edit if tag == wanted), 0)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
