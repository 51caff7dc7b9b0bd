"""What RocksDB's manifest says of its write-ahead logs: which of them are needed, and what tables hold already.

A manifest is a log (`log_records.py`) of version edits, each a list of fields (db/version_edit.cc):

    edit  := field*
    field := tag:varint content       which depends on the tag; from 8192 on a length and bytes that may be ignored
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stateline_store.log_records import read_records

_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _MIN_LOG_TO_KEEP, _NEW_FILE = 2, 3, 4, 10, 103
_COLUMN_FAMILY, _ATOMIC_GROUP = 200, 300
_IGNORABLE = 1 << 13
_END_OF_FILE_FIELDS = 1
# What follows a tag: n a number (varint), b a length and as many bytes.
_CONTENT = {
    1: "b",  # comparator
    _LOG_NUMBER: "n",
    _NEXT_FILE: "n",
    _LAST_SEQUENCE: "n",
    5: "nb",  # compaction cursor: level, key
    6: "nn",  # deleted file: level, number
    9: "n",  # previous log number
    _MIN_LOG_TO_KEEP: "n",
    _NEW_FILE: "nnnbbnn",  # level, number, size, smallest key, largest key, smallest and largest sequence; more fields
    _COLUMN_FAMILY: "n",
    201: "b",  # a column family is added: its name
    202: "",  # dropped
    203: "n",  # largest column family
    _ATOMIC_GROUP: "n",  # edits of this group that follow
}


@dataclass(slots=True)
class Manifest:
    """What a manifest says, all edits together."""

    last_sequence: int = 0
    """The largest sequence number in tables (`descriptor_last_sequence_`, db/version_set.cc)."""
    flushed_log: int = 0
    """Since the opening some column family was flushed, with all that is in the logs before this one."""
    _least_log: int = 0
    _logs: dict[int, int] = field(default_factory=dict)

    @property
    def first_log(self) -> int:
        """The first log that is needed: of those before it every column family has all in its tables."""
        return max(self._least_log, min(self._logs.values(), default=0))

    def apply(self, edit: dict[int, int]) -> None:
        """Take an edit in: the numbers of its fields by their tags."""
        self.last_sequence = max(self.last_sequence, edit.get(_LAST_SEQUENCE, 0))
        self._least_log = max(self._least_log, edit.get(_MIN_LOG_TO_KEEP, 0))
        if (log := edit.get(_LOG_NUMBER)) is not None:
            self._logs[edit.get(_COLUMN_FAMILY, 0)] = log
            if _NEW_FILE in edit and _NEXT_FILE in edit:  # without the latter: how things were when the manifest began
                self.flushed_log = max(self.flushed_log, log)


def manifest_path(directory: Path) -> Path:
    """The manifest in use. Raises `OSError` when there is none."""
    return directory / (directory / "CURRENT").read_text(errors="replace").strip()


def read_manifest(path: Path) -> Manifest:
    """Read it. Raises `ValueError` for what it does not know, `OSError` when it cannot be read."""
    manifest = Manifest()
    group: list[dict[int, int]] = []
    for record, _ in read_records(path):
        edit = _edit(record)
        group.append(edit)
        if not edit.get(_ATOMIC_GROUP):  # all of a group or, when its end is missing, none
            for each in group:
                manifest.apply(each)
            group.clear()
    return manifest


def _edit(record: bytes) -> dict[int, int]:
    """The last number of each field by its tag, 0 for a field without one."""
    fields = _Fields(record)
    edit: dict[int, int] = {}
    while fields.left:
        tag = fields.number()
        content = "b" if tag & _IGNORABLE else _CONTENT.get(tag)
        if content is None:
            raise ValueError(f"a field of the manifest has the tag {tag}")
        edit[tag] = fields.skim(content)
        if tag == _NEW_FILE:
            while fields.number() != _END_OF_FILE_FIELDS:
                fields.skim("b")
    return edit


class _Fields:
    """Reads one record from its beginning."""

    def __init__(self, record: bytes) -> None:
        self._record, self._at = record, 0

    @property
    def left(self) -> bool:
        return self._at < len(self._record)

    def number(self) -> int:
        """A varint: seven bits a byte, the lowest first."""
        number = shift = 0
        while self.left:
            byte = self._record[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise ValueError("a record of the manifest ends within a number")

    def skim(self, content: str) -> int:
        """The last number of this content."""
        number = 0
        for each in content:
            if each == "n":
                number = self.number()
            else:
                length = self.number()
                self._at += length
        return number
