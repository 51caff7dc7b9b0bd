"""Reads RocksDB's manifest: which write-ahead logs are needed, and up to where the tables hold everything. The module
`manifest_tables` lists the tables.

A manifest is a log (`log_records.py`) of version edits, each a list of fields (db/version_edit.cc):

    edit  := field*
    field := tag:varint content       which depends on the tag; from 8192 on a length and bytes that may be ignored
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from stateline_store.rows.log_records import BLOCK_BYTES, UnreadableLogError, read_records

_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _MIN_LOG_TO_KEEP = 2, 3, 4, 10
DELETED_FILE, NEW_FILE, COLUMN_FAMILY, ATOMIC_GROUP = 6, 103, 200, 300
COLUMN_FAMILY_ADDED, COLUMN_FAMILY_DROPPED = 201, 202
_IGNORABLE = 1 << 13
_FAMILIES = frozenset((0, 1))  # of `default` and the first other one. A flush is of all families with unflushed rows
_FILES = (5, DELETED_FILE, NEW_FILE)
_END_OF_FILE_FIELDS = 1
# The content behind a tag: n a number (varint), b a length and as many bytes.
_CONTENT = {
    1: "b",  # comparator
    _LOG_NUMBER: "n",
    _NEXT_FILE: "n",
    _LAST_SEQUENCE: "n",
    5: "nb",  # compaction cursor: level, key
    DELETED_FILE: "nn",  # level, number
    9: "n",  # previous log number
    _MIN_LOG_TO_KEEP: "n",
    NEW_FILE: "nnnbbnn",  # level, number, size, smallest key, largest key, smallest and largest sequence; more fields
    COLUMN_FAMILY: "n",
    COLUMN_FAMILY_ADDED: "b",  # its name
    COLUMN_FAMILY_DROPPED: "",
    203: "n",  # largest column family
    ATOMIC_GROUP: "n",  # edits of this group that follow
}
Fields: TypeAlias = list[tuple[int, list[Any]]]
"""The fields of an edit in their order: tag, and numbers and bytes as in `_CONTENT`."""


@dataclass(slots=True)
class Manifest:
    """The result of all edits of a manifest."""

    last_sequence: int = 0
    """The largest sequence number in tables (`descriptor_last_sequence_`, db/version_set.cc)."""
    flushed_log: int = 0
    """Since the opening some column family was flushed, with all that is in the logs before this one."""
    _least_log: int = 0
    _logs: dict[int, int] = field(default_factory=dict)

    @property
    def first_log(self) -> int:
        """The first needed log. Every column family has all of the logs before it in its tables."""
        return max(self._least_log, min(self._logs.values(), default=0))

    @property
    def is_whole(self) -> bool:
        """Whether the applied edits speak of every column family of a store."""
        return self._logs.keys() >= _FAMILIES

    def apply(self, edit: dict[int, int]) -> None:
        """Apply an edit: the numbers of its fields by their tags."""
        self.last_sequence = max(self.last_sequence, edit.get(_LAST_SEQUENCE, 0))
        self._least_log = max(self._least_log, edit.get(_MIN_LOG_TO_KEEP, 0))
        if (log := edit.get(_LOG_NUMBER)) is not None:
            self._logs[edit.get(COLUMN_FAMILY, 0)] = log
            if NEW_FILE in edit and _NEXT_FILE in edit:  # without the latter: how things were when the manifest began
                self.flushed_log = max(self.flushed_log, log)


def manifest_path(directory: Path) -> Path:
    """Return the path of the manifest in use. Raises `OSError` if there is none."""
    return directory / (directory / "CURRENT").read_text(errors="replace").strip()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest. Raises `ValueError` for unknown content, `OSError` if it cannot be read.

    The newest edits are enough as soon as they speak of every column family. So it takes the same few milliseconds
    after a month: it is read from its last block, then from four times as far back, and so on.
    """
    blocks, last = 1, path.stat().st_size // BLOCK_BYTES
    while blocks <= last:
        manifest = _read_from(path, (last + 1 - blocks) * BLOCK_BYTES)
        if manifest.is_whole:
            return manifest
        blocks *= 4
    return _read_from(path, 0)


def _read_from(path: Path, start: int) -> Manifest:
    manifest = Manifest()
    group: list[dict[int, int]] = []
    try:
        for record, _ in read_records(path, start=start):
            edit = _edit(record)
            group.append(edit)
            if not edit.get(ATOMIC_GROUP):  # all of a group or, when its end is missing, none
                for each in group:
                    manifest.apply(each)
                group.clear()
    except UnreadableLogError as error:
        if error.is_newer:
            raise
    return manifest  # what cannot be read is its end: RocksDB says what is wrong


def _edit(record: bytes) -> dict[int, int]:
    """Return the last number of each field by its tag, 0 for a field without a number. Edits without a log's number are
    compactions, and most of a manifest: only the fields before their files are read."""
    edit: dict[int, int] = {}
    at, end = 0, len(record)
    try:
        while at < end:
            tag, at = _number(record, at)
            if tag in _FILES and _LOG_NUMBER not in edit:
                break
            edit[tag], at = _skim(record, at, "b" if tag & _IGNORABLE else _CONTENT[tag])
            if tag == NEW_FILE:
                at = _behind_file(record, at)
    except (IndexError, KeyError) as error:
        raise ValueError(f"an edit of the manifest cannot be read: {error!r}") from error
    return edit


def read_fields(record: bytes) -> Fields:
    """Return all fields of an edit. Raises `ValueError` for unknown content."""
    found, at = Fields(), 0
    try:
        while at < len(record):
            tag, at = _number(record, at)
            values: list[Any] = []
            for each in "b" if tag & _IGNORABLE else _CONTENT[tag]:
                number, at = _number(record, at)
                values.append(number if each == "n" else record[at : at + number])
                at += 0 if each == "n" else number
            if tag == NEW_FILE:
                at = _behind_file(record, at)
            found.append((tag, values))
    except (IndexError, KeyError) as error:
        raise ValueError(f"an edit of the manifest cannot be read: {error!r}") from error
    return found


def _behind_file(record: bytes, at: int) -> int:
    """Return the end of a file's further fields, which begin here. Their tags have one byte."""
    while record[at] != _END_OF_FILE_FIELDS:
        _, at = _skim(record, at + 1, "b")
    return at + 1


def _skim(record: bytes, at: int, content: str) -> tuple[int, int]:
    """Return the last number of this content, 0 without one, and its end."""
    number = 0
    for each in content:
        value, at = _number(record, at)
        if each == "n":
            number = value
        else:
            at += value
    return number, at


def _number(record: bytes, at: int) -> tuple[int, int]:
    """Return a varint, seven bits a byte and the lowest first, and its end."""
    number = record[at]
    if number < 0x80:  # most of them
        return number, at + 1
    number &= 0x7F
    for shift in range(7, 64, 7):
        at += 1
        byte = record[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return number, at + 1
