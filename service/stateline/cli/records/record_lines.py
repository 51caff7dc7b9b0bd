"""Show records for `stateline consume`: a line each for people, or JSON (`record_json`). Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from stateline.cli.records.record_json import Format, written_members
from stateline.log.interface import Record
from stateline.model.topic import Topic
from stateline.processing.failures import DEAD_LETTER, dead_letter_of
from stateline.serde.iso_times import utc_text
from stateline.serde.plain import Serde, one_line
from stateline.serde.record_members import headers_of, members_of

Types: TypeAlias = tuple[Serde | None, Serde | None]
"""The serdes of key and value, None if unknown."""


@dataclass(frozen=True, slots=True)
class RecordLines:
    """`topics` have known types. A dead letter has the types of its source topic."""

    topics: Mapping[str, Topic]
    format: Format

    def line(self, record: Record) -> str:
        """Return the record without a line end. For people, a dead letter has several lines."""
        letter = dead_letter_of(record)
        topic = self.topics.get(record.topic if letter is None else str(letter.get("topic")))
        types = (None, None) if topic is None else (topic.key, topic.value)
        is_json = self.format == "jsonl"
        made = written_members if is_json else members_of
        members = {**made(record.key, "key", types[0]), **made(record.value, "value", types[1])}
        return self._json(record, members, letter) if is_json else _text(record, members, types, letter)

    def _json(self, record: Record, members: dict[str, Any], letter: dict[str, Any] | None) -> str:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        found = {**place, "timestamp": record.timestamp_ms, **members}
        if record.headers:
            found["headers"] = headers_of(record.headers)
        if letter is not None:
            found["dead_letter"] = {name: text for name, text in letter.items() if name != "stacktrace"}
        # A JSON value is copied unchanged: its line breaks would end the line.
        return one_line(orjson.dumps(found)).decode()


def _text(record: Record, members: Mapping[str, Any], types: Types, letter: Mapping[str, Any] | None) -> str:
    key = _cell(record.key, "key_base64" in members, types[0], "(no key)")
    value = _cell(record.value, "value_base64" in members, types[1], "(deleted)")
    at = record.timestamp_ms
    time = utc_text(at) if at >= 0 else str(at)
    parts = [f"{record.topic}-{record.partition}:{record.offset}", time, key, value]
    own = [pair for pair in headers_of(record.headers) if letter is None or not pair[0].startswith(DEAD_LETTER)]
    parts += [f"{_printable(name)}={_header(text)}" for name, text in own]
    line = "  ".join(parts)
    if letter is None:
        return line
    place = f"{letter['topic']}-{letter.get('partition', '?')}:{letter.get('offset', '?')}"
    why = f"{letter.get('exception', 'an error')}: {letter.get('message') or 'no message'}"
    return f"{line}\n    of {_printable(place)}, left out for {_printable(' '.join(why.split()))}"


def _cell(data: bytes | None, is_raw: bool, serde: Serde | None, absent: str) -> str:
    if data is None:
        return absent
    if is_raw:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = f"base64:{base64.b64encode(data).decode()}"
    elif serde is None or serde.name in ("string", "json"):
        text = data.decode()
    else:
        text = orjson.dumps(serde.to_json(data)).decode().strip('"')
    return _printable(text) or '""'


def _header(value: Any) -> str:
    if value is None:
        return "(none)"
    return f"base64:{value['base64']}" if isinstance(value, dict) else _printable(value) or '""'


def _printable(text: str) -> str:
    """Escape unprintable characters as Python does, so that the text is one line and does nothing to a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
