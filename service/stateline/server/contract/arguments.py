"""What a request asks for: parameters of the URL and members of a JSON body, read by one set of rules.

Every parameter is declared once, in `PARAMETERS`, for the parser and for the OpenAPI document. A value from a
URL is text; one from a body is JSON. Whatever cannot be read raises `InvalidArgumentError`, naming the
parameter.

A key of type `json` is looked up as it is written, byte for byte, in a body too: `[1, 2]` is not `[1,2]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request

from stateline.model.record_size import MAX_KEY_BYTES
from stateline.serde.plain import Serde, holds_large_integer, load_exactly, shortened, shown
from stateline_store import DoesNotExistError, InvalidArgumentError, IsolationLevel, Position, PositionBound

# Of a path and a query string together: what proxies and clients agree on is far less.
# 64 KiB less one: the longest that the HTTP parser can take apart.
MAX_URL_BYTES = 64 * 1024 - 1

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
# As times in milliseconds they are of the first two days of 1970, or beyond the year 2286: whoever writes one means a
# date, or a date and a time.
_BARE_DATE = re.compile(r"[1-9]\d{7}(?:\d{6})?", re.ASCII)
# Python takes any character between date and time, also a digit.
_NO_SEPARATOR = re.compile(r"\d{9,}", re.ASCII)
_TOO_LARGE = re.compile(r"-?\d{20,}", re.ASCII)
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_FORGOTTEN_PLUS = re.compile(r"(?<=:\d\d) (?=\d\d:?\d\d$)|(?<=\.\d{3}) (?=\d\d:?\d\d$)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNBOUNDED = PositionBound()


class Parameter(NamedTuple):
    """A parameter as the OpenAPI document shows it."""

    schema: Mapping[str, Any]
    description: str


_POSITION_SCHEMA = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    },
}
_KEY = {"description": "As the store's key type is written.", "not": {"type": "null"}}
_TIME = {
    "type": ["integer", "string"],
    "description": "Milliseconds since the epoch, in a body as a number; or ISO 8601 as a text (UTC unless it says).",
}

PARAMETERS: dict[str, Parameter] = {
    "isolation_level": Parameter(
        {"type": "string", "enum": [level.value for level in IsolationLevel]},
        "Which records may be seen; the store's default otherwise.",
    ),
    "position_bound": Parameter(_POSITION_SCHEMA, "The least position accepted: JSON, topic → partition → offset."),
    "wait_ms": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "How long to wait for the bound, in milliseconds; at most the setting server.wait.max.ms.",
    ),
    "require_active": Parameter(
        {"type": "boolean", "default": False}, "Accept only an active copy, not a standby or restoring one."
    ),
    "partition": Parameter(
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        "Ask only these partitions: repeated, or separated by commas.",
    ),
    "allow_partial": Parameter(
        {"type": "boolean", "default": False},
        "Answer 200 when some partitions fail, with the failures beside.",
    ),
    "limit": Parameter(
        {"type": "integer", "minimum": 1},
        "The most entries of an answer; the settings server.limit.default and server.limit.max apply.",
    ),
    "order": Parameter(
        {"type": "string", "enum": ["asc", "desc"]},
        "Up or down, by serialized key or by time; versions come the newest first unless told, all else up.",
    ),
    "lower": Parameter(_KEY, "The first key, inclusive; open when left out."),
    "upper": Parameter(_KEY, "The last key, inclusive; open when left out."),
    "prefix": Parameter(_KEY, "What keys begin with; instead of lower and upper."),
    "key": Parameter(_KEY, "The key to look up."),
    "keys": Parameter({"type": "array", "items": {"description": _KEY["description"]}}, "The keys to look up."),
    "from": Parameter(
        _TIME, "The first time, inclusive; open when left out. Of windows their start, of sessions the end."
    ),
    "to": Parameter(_TIME, "The last time, inclusive, open when left out. Windows and sessions: the start."),
    "as_of": Parameter(_TIME, "A time in the past: versioned stores only, other kinds answer UNKNOWN_QUERY_TYPE."),
    "cursor": Parameter(
        {"type": "string"},
        "The next page, of the state that the first one showed: the `cursor` of an answer, alone or with a limit.",
    ),
    "type": Parameter({"type": "string"}, "The kind of query."),
    "changes.from": Parameter(
        {"type": "string", "default": "latest"},
        "Where to begin: earliest, latest, an event's id, or the position of an answer. Last-Event-ID goes before.",
    ),
    "changes.isolation_level": Parameter(
        {"type": "string", "enum": [IsolationLevel.READ_COMMITTED.value]}, "There are changes of committed state only."
    ),
    "offsets.from": Parameter(
        {"type": "string"},
        "Where to begin: earliest, latest, an event's id, or the position of an answer; without it there is no begin.",
    ),
    "rows.partition": Parameter({"type": "integer", "minimum": 0}, "The partition; it has to be there."),
    "begin": Parameter({"type": "integer", "minimum": 0}, "The first offset that is wanted; it has to be there."),
    "end": Parameter({"type": "integer", "minimum": 0}, "The offset after the last one; it has to be there."),
    "topic_id": Parameter({"type": "string"}, "The id of the topic that the offsets are of; it has to be there."),
    "columns": Parameter({"type": "string"}, "The columns, separated by commas; all when left out."),
    "after": Parameter(_KEY, "Read on behind this key: key-value stores only, where rows come by key."),
    "skip": Parameter(
        {"type": "integer", "minimum": 0, "default": 0},
        "Leave out so many of the rows, from the first on: those that a stream had before it broke off.",
    ),
    "pin": Parameter(
        {"type": "string", "minLength": 1, "maxLength": 64},
        "What you call this snapshot: asked for again, of the same stores, it is the same one.",
    ),
    "stores": Parameter({"type": "array", "items": {"type": "string"}, "minItems": 1}, "The stores' names."),
    "ttl_s": Parameter(
        {"type": "integer", "minimum": 1},
        "For how many seconds from now; 300 unless given, at most the setting server.snapshot.ttl.max.ms.",
    ),
}

COMMON = ("isolation_level", "position_bound", "wait_ms", "require_active", "partition", "allow_partial")


@dataclass(frozen=True, slots=True)
class Argument:
    """A value as it was given: `textual` in a URL, JSON in a body."""

    value: Any
    textual: bool
    written: str | None = None
    """Of a member of a body its JSON text, where that was asked for."""

    def shown(self) -> str:
        """The value for a message."""
        return shown(self.value) if self.textual else json_text(self.value)

    def items(self) -> list[Argument]:
        """The items of an array in a body."""
        if self.written is None:
            return [Argument(item, textual=False) for item in self.value]
        texts = _array_items(self.written)
        return [Argument(item, textual=False, written=text) for item, text in zip(self.value, texts, strict=True)]


class Arguments:
    """The arguments of one request; each method reads one, or returns its default when it was not given."""

    def __init__(self, given: Mapping[str, Argument]) -> None:
        """A member of a body that is null counts as not given, but its name has to be one that may be."""
        self._names = given.keys()
        self._given = {name: argument for name, argument in given.items() if argument.value is not None}
        self.key_bytes = 0
        """Of the keys that were read."""

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def names(self) -> set[str]:
        """What was given."""
        return set(self._given)

    def refuse_others(self, allowed: Iterable[str]) -> None:
        """Raise for an argument that is not among the allowed ones."""
        allowed = tuple(allowed)
        for name in self._names:
            if name not in allowed:
                known = ", ".join(name for name in allowed if name != "type")
                raise InvalidArgumentError(f"Unknown parameter {shown(name)}: this query takes {known or 'none'}.")

    def integer(self, name: str, default: int, minimum: int, maximum: int, setting: str) -> int:
        """An integer of this range; `setting` names what sets its upper end."""
        argument = self._given.get(name)
        if argument is None:
            return default
        value = argument.value
        if argument.textual and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if minimum <= value <= maximum:
                return value
        elif not (argument.textual and _TOO_LARGE.fullmatch(value)):
            raise InvalidArgumentError(f"{name}={argument.shown()} is not an integer.")
        raise InvalidArgumentError(
            f"{name}={shown(value)} is out of range: {minimum} to {maximum} ({setting}) is accepted."
        )

    def time(self, name: str) -> int | None:
        """A time in milliseconds since the epoch; None when it was not given."""
        argument = self._given.get(name)
        if argument is None:
            return None
        value = argument.value
        if argument.textual and _BARE_DATE.fullmatch(value):
            raise InvalidArgumentError(
                f"{name}={value} would be milliseconds, a time of {_year_of(int(value))}: write a date as "
                f"2026-01-01 or 2026-01-01T00:00:00Z, or 0{value} if so many milliseconds are meant."
            )
        if argument.textual and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, str):
            value = _iso_time(value)
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return value
        raise InvalidArgumentError(
            f"{name}={argument.shown()} is no time: write milliseconds since the epoch, or ISO 8601 as in "
            "2026-01-31T12:00:00Z."
        )

    def text(self, name: str) -> str | None:
        """A text; None when it was not given."""
        argument = self._given.get(name)
        if argument is None:
            return None
        if not isinstance(argument.value, str):
            raise InvalidArgumentError(f"{name}={argument.shown()} is not a text.")
        return argument.value

    def texts(self, name: str, maximum: int) -> tuple[str, ...]:
        """The texts of an array in a body, each once, in the order given; it has 1 to `maximum`."""
        argument = self._given.get(name)
        if argument is None:
            raise InvalidArgumentError(f"{name} is missing: an array of 1 to {maximum} texts is accepted.")
        value = argument.value
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= maximum
            or not all(isinstance(item, str) for item in value)
        ):
            raise InvalidArgumentError(f"{name}={json_text(value)}: an array of 1 to {maximum} texts is accepted.")
        return tuple(dict.fromkeys(value))

    def boolean(self, name: str) -> bool:
        """True or false; false by default."""
        argument = self._given.get(name)
        if argument is None:
            return False
        value = {"true": True, "false": False}.get(argument.value) if argument.textual else argument.value
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}={argument.shown()} is neither true nor false.")
        return value

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        """One of these texts."""
        argument = self._given.get(name)
        if argument is None:
            return default
        for choice in choices:
            if argument.value == choice:
                return choice
        raise InvalidArgumentError(f"{name}={argument.shown()} is not one of {', '.join(choices)}.")

    def partitions(self) -> tuple[int, ...] | None:
        """The partitions asked for, ascending, or None for all that there are."""
        argument = self._given.get("partition")
        if argument is None:
            return None
        numbers = argument.value if isinstance(argument.value, list) else [argument.value]
        if argument.textual:
            parts = [part for text in numbers for part in text.split(",")]
            numbers = [int(part) if _INTEGER.fullmatch(part) else part for part in parts]
            if beyond := next(filter(_TOO_LARGE.fullmatch, parts), None):
                raise no_such_partition(beyond)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int):
                given = Argument(number, argument.textual).shown()
                raise InvalidArgumentError(f"partition={given} is not a partition number.")
            if abs(number) >= 10**19:  # more than _INTEGER
                raise no_such_partition(json_text(number))
        if not numbers:
            raise InvalidArgumentError("partition is empty: name one, or leave it out.")
        return tuple(sorted(set(numbers)))

    def bound(self, most: int) -> PositionBound:
        """The position bound, of so many topics and partitions of them at most; none by default."""
        argument = self._given.get("position_bound")
        if argument is None:
            return _UNBOUNDED
        value = parsed_json("position_bound", argument.value) if argument.textual else argument.value
        named = (
            len(value) + sum(len(p) for p in value.values() if isinstance(p, dict)) if isinstance(value, dict) else 0
        )
        if named > most:
            raise InvalidArgumentError(
                f"position_bound names {named} topics and partitions: {most} are accepted. Send the position of an "
                "answer of this store."
            )
        try:
            return PositionBound(Position.from_json(value))
        except ValueError as error:  # InvalidArgumentError is one; Python's own, a number of 4300 digits
            raise InvalidArgumentError(f"position_bound: {error}") from error

    def key(self, name: str, serde: Serde) -> bytes | None:
        """A key in the store's key type, as bytes; None when it was not given."""
        argument = self._given.get(name)
        if argument is None:
            return None
        key = _key_of(name, argument, serde)
        self.key_bytes += len(key)
        return key

    def keys(self, serde: Serde, maximum: int) -> tuple[bytes, ...]:
        """The keys of a body, each once, in the order given."""
        argument = self._given.get("keys")
        accepted = f"an array of 1 to {maximum} (server.limit.max) keys is accepted."
        if argument is None:
            raise InvalidArgumentError(f"keys is missing: {accepted}")
        if not isinstance(argument.value, list) or not 1 <= len(argument.value) <= maximum:
            raise InvalidArgumentError(f"keys={json_text(argument.value)}: {accepted}")
        keys = tuple(dict.fromkeys(_key_of("keys", item, serde) for item in argument.items()))
        self.key_bytes += sum(map(len, keys))
        return keys


def _year_of(time_ms: int) -> int:
    return (_EPOCH + timedelta(milliseconds=time_ms)).year


def _iso_time(text: str) -> int | None:
    """Milliseconds since the epoch, the rest of one cut off; None for what is no ISO 8601. Without a zone it is UTC."""
    if _NO_SEPARATOR.match(text):
        return None
    try:
        # A query string's + is a space: who forgot to write %2B is understood, for no time has a space before its zone.
        time = datetime.fromisoformat(_FORGOTTEN_PLUS.sub("+", text))
    except ValueError:
        return None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _key_of(name: str, argument: Argument, serde: Serde) -> bytes:
    if argument.written is not None:
        if len(argument.written) > MAX_KEY_BYTES:  # and its bytes are not fewer
            raise _too_long(name, len(argument.written))
        return read_key(name, argument.written, serde, textual=True)
    return read_key(name, argument.value, serde, textual=argument.textual)


def no_such_partition(number: str) -> DoesNotExistError:
    """What to say to a number that no store's partition can have."""
    return DoesNotExistError(f"There is no partition {shortened(number)}: partitions are numbers from 0 on.")


def numbers_shown(count: int) -> str:
    """The numbers of so many partitions, for a message that says which there are."""
    return "only 0" if count == 1 else f"0 to {count - 1}"


def refuse_parameters(request: Request) -> None:
    """Raise `InvalidArgumentError` for a request that has any."""
    Arguments(from_query_string(request.scope["query_string"])).refuse_others(())


def read_key(name: str, value: Any, serde: Serde, *, textual: bool) -> bytes:
    """The bytes of a key that was written as text or as JSON."""
    try:
        key = serde.parse_text(value) if textual else serde.from_json(value)
    except InvalidArgumentError as error:
        why = str(error) if textual else str(error).replace(shown(value), json_text(value), 1)
        raise InvalidArgumentError(f"{name}: {why} The store's keys are of type {serde.name}.") from error
    if len(key) > MAX_KEY_BYTES:
        raise _too_long(name, len(key))
    return key


def _too_long(name: str, size: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} has {size} bytes: {MAX_KEY_BYTES} are accepted.")


def json_text(value: Any, limit: int = 60) -> str:
    """A value of a body as JSON, cut short for a message."""
    text = ""
    for piece in _ENCODER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:  # the rest may be long, and costs time
            return text[: limit - 3] + "..."
    return text


def url_too_long() -> InvalidArgumentError:
    """What to say to a URL of more than `MAX_URL_BYTES`."""
    return InvalidArgumentError(
        f"The URL is longer than {MAX_URL_BYTES} bytes (64 KiB): send the query as a body (POST …/query)."
    )


def refuse_bad_percent(what: str, encoded: bytes) -> None:
    """Raise for a `%` without two hexadecimal digits, which decoders leave as it is."""
    if (bad := _BAD_PERCENT.search(encoded)) is not None:
        sample = encoded[bad.start() : bad.start() + 3].decode("latin-1")
        raise InvalidArgumentError(f"{what} is not percent-encoded: {sample!r}. Write % itself as %25.")


def from_query_string(query_string: bytes) -> dict[str, Argument]:
    """The parameters of a URL. Only `partition` may be repeated."""
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
    """The members of a JSON object, with the text of each if it is to be kept."""
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
    """Name → JSON text of each member of an object that is known to be sound."""
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
    """The JSON text of each item of an array that is known to be sound."""
    items = []
    at = _skip(text, 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        items.append(text[at:end])
        at = _next_item(text, end)
    return items


def _next_item(text: str, end: int) -> int:
    """Where the next item begins, or the closing bracket is, behind an item that ended here."""
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    """Where the white space that may be here has ended."""
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def parsed_json(what: str, text: str | bytes) -> Any:
    """A JSON text's value; `what` names it in messages. Raises `InvalidArgumentError`.

    Read twice: orjson is strict, the standard library exact, and notices a name that stands twice."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if not holds_large_integer(data):
            begin = data[:240].decode(errors="replace")[:60]
            seen = f" It begins with {begin}" if begin else ""
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
