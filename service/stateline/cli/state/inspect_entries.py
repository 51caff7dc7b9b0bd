"""Read keys and show entries of stores for `stateline inspect`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stateline import serdes
from stateline.cli.state.inspect_view import dumped, format_name, moment, problem_json, problem_lines
from stateline.cli.table import as_text
from stateline.serde.key_text import key_of_text, key_text
from stateline.serde.plain import Serde, shown
from stateline.serde.record_members import headers_of
from stateline_store import InvalidArgumentError
from stateline_store.inspection.inspection_report import StoreReport, UnreadablePart
from stateline_store.inspection.offline_entries import Entry

_NAMES = ("string", "json", "bytes", "int32", "int64", "float64", "uuid", "datetime")
_SERDES: dict[str, Serde] = {name: getattr(serdes, name) for name in _NAMES}
_TIMES = ("segment", "start_ms", "end_ms", "sequence", "timestamp_ms", "valid_to_ms")


class LocatedEntry(NamedTuple):
    application_id: str
    task_id: str
    store: StoreReport
    entry: Entry


@dataclass(frozen=True, slots=True)
class Notation:
    """How keys or values are written: by the type of an option, or without one like `plain_text`."""

    option: str
    serde: Serde | None

    def parsed(self, option: str, text: str) -> bytes:
        """The bytes of a key given with this option. Raises `InvalidArgumentError` if the type has no such value."""
        try:
            if self.serde is not None:
                return key_of_text(self.serde, text)
            return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
        except ValueError as error:  # includes InvalidArgumentError
            why = str(error) if self.serde else "hexadecimal digits follow 0x"
            raise InvalidArgumentError(f"{option} {shown(text)} cannot be read: {why}") from error

    def to_json(self, data: bytes) -> object:
        """The value for JSON. Raises `InvalidArgumentError` if the bytes do not fit the type."""
        if self.serde is None:
            return plain_text(data)
        try:
            return self.serde.deserialize(data) if self.serde is serdes.json else self.serde.to_json(data)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error} Give another {self.option}, or none.") from error

    def to_text(self, data: bytes) -> str:
        value = self.to_json(data)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def key_members(self, data: bytes) -> dict[str, object]:
        """`key`, and `key_text` if only that can be given again."""
        text = None if self.serde is None else key_text(self.serde, data)
        return {"key": self.to_json(data)} if text is None else {"key": self.to_json(data), "key_text": text}


def notation(option: str, name: str | None) -> Notation:
    """Read `--key-type` or `--value-type`. Raises `InvalidArgumentError` for an unknown type."""
    if name is not None and name not in _SERDES:
        raise InvalidArgumentError(f"{option} {name!r}: {', '.join(_SERDES)} are accepted.")
    return Notation(option, None if name is None else _SERDES[name])


def plain_text(data: bytes) -> str:
    """Printable UTF-8 unchanged, anything else as 0x and hexadecimal digits. Text that begins with 0x is encoded too,
    so that it can be given again."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{data.hex()}"


def entries_as_json(
    found: Sequence[LocatedEntry], problems: Sequence[UnreadablePart], keys: Notation, values: Notation, *, more: bool
) -> str:
    """An object of `entries`, `more` (the limit cut them off) and `problems`."""
    rows = [
        {
            "application": one.application_id,
            "task": one.task_id,
            "store": one.store.name,
            "format": format_name(one.store),
        }
        | {name: getattr(one.entry, name) for name in _TIMES}
        | keys.key_members(one.entry.key)
        | {"value": None if one.entry.value is None else values.to_json(one.entry.value)}
        | ({} if one.entry.headers is None else {"headers": headers_of(one.entry.headers)})
        for one in found
    ]
    return dumped({"entries": rows, "more": more, "problems": [problem_json(problem) for problem in problems]})


def entries_as_table(
    found: Sequence[LocatedEntry], problems: Sequence[UnreadablePart], keys: Notation, values: Notation, *, more: bool
) -> str:
    """A line per entry, without empty columns."""
    rows: list[dict[str, object]] = [
        {"application": one.application_id, "task": one.task_id, "store": one.store.path.name}
        | {"key": keys.key_members(one.entry.key).get("key_text") or keys.to_text(one.entry.key)}
        | {name.removesuffix("_ms"): _moment(name, getattr(one.entry, name)) for name in _TIMES}
        | {"value": "(deleted)" if one.entry.value is None else values.to_text(one.entry.value)}
        | {"headers": _headers(one.entry)}
        for one in found
    ]
    empty = {name for name in (rows[0] if rows else ()) if all(row[name] is None for row in rows)}
    lines = [as_text(rows, as_json=False, hide=empty)]
    if more:
        lines.append(f"There are more than these {len(found)}: --limit shows more.")
    return "\n".join([*lines, *problem_lines(problems)])


def _moment(name: str, value: object) -> object:
    return moment(value) if isinstance(value, int) and name.endswith("_ms") else None if value is None else str(value)


def _headers(entry: Entry) -> str | None:
    return None if entry.headers is None else json.dumps(headers_of(entry.headers), ensure_ascii=False)
