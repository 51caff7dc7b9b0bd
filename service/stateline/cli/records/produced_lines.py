"""Read lines for `stateline produce` and make records of them.

Each line is read twice, because every line is checked before the first record is written. Lines of a pipe stay in
memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from stateline.cli.records.record_json import Format, NewRecord, read_record
from stateline.model.topic import Topic
from stateline.serde.plain import Serde, shown
from stateline_store import InvalidArgumentError

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that can be read repeatedly. `name` is the file's, or empty. `size` is in bytes, if known."""

    name: str
    open: Callable[[], Iterable[str]]
    size: int | None = None

    def place(self, number: int) -> str:
        """The line's place for a message: file, unless it is standard input, and number from 1."""
        return f"{self.name} line {number}" if self.name else f"Line {number}"


def sources(files: Sequence[str], standard_input: TextIO | Iterable[str]) -> list[Lines]:
    """The lines of these files. ``-`` or no file means standard input.

    Raises `InvalidArgumentError` if a file cannot be read or standard input is named twice.
    """
    if list(files).count(STANDARD_INPUT) > 1:
        raise InvalidArgumentError("Standard input (-) is named twice, and can be read once.")
    return [_source(file, standard_input) for file in files or (STANDARD_INPUT,)]


def _source(file: str, standard_input: Iterable[str]) -> Lines:
    if file == STANDARD_INPUT:
        kept = list(standard_input)
        return Lines("", lambda: kept)
    path = Path(file)
    try:
        if path.is_file():
            with path.open("rb"):
                return Lines(file, partial(_lines_of, path), path.stat().st_size)
        kept = list(_lines_of(path))  # a pipe, for example, can be read once
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error.strerror or error}.") from error
    return Lines(file, lambda: kept)


def _lines_of(path: Path) -> Iterator[str]:
    # Other bytes than UTF-8 are refused later, as part of a key or value.
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        yield from file


@dataclass(frozen=True, slots=True)
class LineReader:
    """Makes records of lines. `at_most`: bytes of key and value together."""

    topic: Topic
    format: Format
    at_most: int

    def read(self, line: str) -> NewRecord | None:
        """Return the record, None for an empty line. Raises `InvalidArgumentError` with the wrong part."""
        text = line.rstrip("\r\n")
        if not text:
            return None
        is_json = self.format == "jsonl"
        record = read_record(text, self.topic.key, self.topic.value) if is_json else self._key_and_value(text)
        if (size := len(record.key or b"") + len(record.value or b"")) > self.at_most:
            raise InvalidArgumentError(
                f"key and value have {size} bytes together, and the log takes {self.at_most}: make it smaller. (Kafka "
                "takes more if producer.message.max.bytes and the topic's max.message.bytes say so.)"
            )
        return record

    def _key_and_value(self, text: str) -> NewRecord:
        key, tab, value = text.partition("\t")
        if not tab:
            raise InvalidArgumentError(
                f"no tab between key and value in {shown(key)}; to delete a key write key, tab, nothing."
            )
        key_bytes = _parsed(self.topic.key, key, "key")
        return NewRecord(key_bytes, _parsed(self.topic.value, value, "value") if value else None)


def _parsed(serde: Serde, text: str, where: str) -> bytes:
    try:
        return serde.parse_text(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where} ({serde.name}): {error}") from error
