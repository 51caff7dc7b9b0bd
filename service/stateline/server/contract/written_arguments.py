"""Parse what a request has written, name by name: a query string, where a value is text, and a JSON body.

An unreadable request raises `InvalidArgumentError`. `arguments` reads the values.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from stateline.serde.plain import holds_large_integer, load_exactly, shown
from stateline_store import InvalidArgumentError

# Of a path and a query string together: what proxies and clients agree on is far less.
# 64 KiB less one: the longest that the HTTP parser can take apart.
MAX_URL_BYTES = 64 * 1024 - 1

_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Argument:
    """A value as it was given: `textual` in a URL, JSON in a body."""

    value: Any
    textual: bool
    written: str | None = None
    """Of a member of a body its JSON text, where that was asked for."""

    def shown(self) -> str:
        return shown(self.value) if self.textual else json_text(self.value)

    def items(self) -> list[Argument]:
        if self.written is None:
            return [Argument(item, textual=False) for item in self.value]
        texts = _array_items(self.written)
        return [Argument(item, textual=False, written=text) for item, text in zip(self.value, texts, strict=True)]


def json_text(value: Any, limit: int = 60) -> str:
    """Return a value of a body as JSON, cut short for a message."""
    text = ""
    for piece in _ENCODER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:  # the rest may be long, and costs time
            return text[: limit - 3] + "..."
    return text


def url_too_long() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The URL is longer than {MAX_URL_BYTES} bytes (64 KiB): send the query as a body (POST …/query)."
    )


def refuse_bad_percent(what: str, encoded: bytes) -> None:
    """Raise for a `%` without two hexadecimal digits. Decoders leave it unchanged."""
    if (bad := _BAD_PERCENT.search(encoded)) is not None:
        sample = encoded[bad.start() : bad.start() + 3].decode("latin-1")
        raise InvalidArgumentError(f"{what} is not percent-encoded: {sample!r}. Write % itself as %25.")


def from_query_string(query_string: bytes) -> dict[str, Argument]:
    """Return the parameters of a URL. Only `partition` may be repeated."""
    refuse_bad_percent("The query string", query_string)
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"The query string is not percent-encoded UTF-8: {error.reason}.") from error
    except ValueError as error:
        raise InvalidArgumentError(f"The query string cannot be read: {error}.") from error
    given: dict[str, Argument] = {}
    for name, value in pairs:
        if name == "partition":
            given.setdefault(name, Argument([], textual=True)).value.append(value)
        elif name in given:
            raise InvalidArgumentError(f"{shown(name)} is given twice: give it once.")
        else:
            given[name] = Argument(value, textual=True)
    return given


def from_body(body: bytes, *, keep_text: bool = False) -> dict[str, Argument]:
    """Return the members of a JSON object, each with its text if `keep_text`."""
    value = parsed_json("The body", body)
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"The body is a JSON object, not {json_text(value)}.")
    if len(value) > _MOST_MEMBERS:
        raise InvalidArgumentError(f"The body has {len(value)} members: no request takes more than {_MOST_MEMBERS}.")
    texts = _object_members(body.decode()) if keep_text else {}
    return {name: Argument(member, textual=False, written=texts.get(name)) for name, member in value.items()}


_MOST_MEMBERS = 100  # of a body
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SPACE = re.compile(r"[ \t\n\r]*")
# Where a value ends is all that is asked of it: numbers stay text, for those of thousands of digits take long to read.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


def _object_members(text: str) -> dict[str, str]:
    """Return the JSON text of each member of a valid object."""
    members = {}
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        members[name] = text[begin:end]
        at = _next_item(text, end)
    return members


def _array_items(text: str) -> list[str]:
    """Return the JSON text of each item of a valid array."""
    items = []
    at = _skip(text, 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        items.append(text[at:end])
        at = _next_item(text, end)
    return items


def _next_item(text: str, end: int) -> int:
    """Return where the next item or the closing bracket begins, after an item that ended here."""
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def parsed_json(what: str, text: str | bytes) -> Any:
    """Return a JSON text's value. `what` names it in messages. Raises `InvalidArgumentError`.

    It is read twice: orjson is strict; the standard library is exact and notices a repeated name.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if not holds_large_integer(data):
            begin = data[:240].decode(errors="replace")[:60]
            seen = f" It begins with {begin}." if begin else ""
            raise InvalidArgumentError(f"{what} is not JSON: {error}.{seen}") from error
    try:
        return load_exactly(data, _without_repetition)
    except InvalidArgumentError:
        raise
    except RecursionError as error:
        raise InvalidArgumentError(f"{what} is nested too deeply.") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{what} cannot be read: {error}.") from error


def _without_repetition(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(members) == len(found):
        return found
    seen = set()
    for name, _ in members:
        if name in seen:
            raise InvalidArgumentError(f"A JSON object has {json_text(name)} twice: give it once.")
        seen.add(name)
    return found
