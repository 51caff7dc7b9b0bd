"""Which rows a server may leave out because Spark's filters would: pure, and only ever less than they would.

Every filter is handed back to Spark, which applies it to what arrives. So all that counts here is that no row is left
out that they keep. Bounds of the user's own go before: a filter narrows only what they leave open.

| column                              | filters                    | becomes                                         |
|-------------------------------------|----------------------------|-------------------------------------------------|
| `key`: string, bytes                | =, in, <, ≤, >, ≥, begins  | `lower` and `upper`, `prefix`, or the keys      |
| `key`: int32, int64                 | =, in                      | `lower` and `upper`, or the keys                |
|                                     | bounds of one sign         | `lower`, `upper`: as bytes negatives come last  |
| `key`: json, its text               | =, in                      | `lower` and `upper`, where all of them are JSON |
| `timestamp` of key-value stores     | =, in, <, ≤, >, ≥          | `from`, `to`                                    |
| `start` of windows                  | =, in, <, ≤, >, ≥          | `from`, `to`                                    |
| `end` of sessions; their `start`    | =, in, >, ≥; =, in, <, ≤   | `from`; `to`                                    |
| `valid_to` of versions; `timestamp` | =, in, >, ≥; =, in, <, ≤   | `from`; `to`                                    |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from stateline.client.lean.snapshot_rows import LONGEST_KEY
from stateline_store.layout import is_timestamped, plain_kind

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

KEYS_MOST = 5000
"""Of more keys than this the range is asked for: then a seek for each is no cheaper than reading them all."""
KEYS_AT_ONCE = 500
"""Of one request; server.limit.max has to allow as many."""
BYTES_AT_ONCE = 1024 * 1024
"""Of the keys of one request, as JSON: a quarter of what server.body.max.bytes is unless it is set."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_BITS = {"int32": 32, "int64": 64}
_BELOW, _ABOVE = ("LessThan", "LessThanOrEqual"), ("GreaterThan", "GreaterThanOrEqual")


@dataclass(frozen=True, slots=True)
class StoreShape:
    """What decides which filters a store's rows can be narrowed by."""

    kind: str
    key_type: str


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Bounds as a URL writes them, and the keys, as JSON has them, if these alone are wanted."""

    bounds: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Any, ...] | None = None


@dataclass(slots=True)
class _Span:
    """What several filters leave of one column."""

    lower: Any = None
    upper: Any = None
    prefix: Any = None
    values: list[Any] | None = None

    def take(self, name: str, value: Any) -> None:
        if name in ("EqualTo", "EqualNullSafe"):
            self._among([value])
        elif name == "In":
            self._among(list(value))
        elif name in _ABOVE:
            self.lower = value if self.lower is None else max(self.lower, value)
        elif name in _BELOW:
            self.upper = value if self.upper is None else min(self.upper, value)
        elif name == "StringStartsWith":
            self.prefix = value if self.prefix is None else max(self.prefix, value, key=len)

    def _among(self, values: list[Any]) -> None:
        found = list(dict.fromkeys(value for value in values if value is not None))
        self.values = found if self.values is None else [value for value in found if value in self.values]


def narrowed(filters: Iterable[Filter], shape: StoreShape, given: Mapping[str, str]) -> Narrowed:
    """What these filters leave of a store's rows, within the bounds that were given."""
    spans: dict[str, _Span] = {}
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if len(path) == 1 and _is_usable(path[0], value, shape):
            span = spans.setdefault(path[0].lower(), _Span())
            span.take(type(each).__name__, _ordered(path[0], value))
    bounds, keys = _keys(spans.get("key", _Span()), shape, given)
    return Narrowed({**bounds, **_times(spans, shape, given), **given}, keys)


def in_pieces(keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """All of these keys, as JSON has them, in as many requests as they need."""
    piece: list[Any] = []
    size = 0
    for key in keys:
        size += (added := _json_bytes(key))
        if piece and (len(piece) == KEYS_AT_ONCE or size > BYTES_AT_ONCE):
            yield tuple(piece)
            piece, size = [], added
        piece.append(key)
    if piece:
        yield tuple(piece)


def _json_bytes(key: Any) -> int:
    return len(json.dumps(key)) + 2  # with a comma and a space


def _is_usable(column: str, value: Any, shape: StoreShape) -> bool:
    """Whether values of this type are compared as the store's own are."""
    values = value if isinstance(value, list | tuple) else [value]
    if column.lower() == "key":
        kinds: dict[str, type | tuple[type, ...]] = {"string": str, "json": str, "bytes": (bytes, bytearray)}
        wanted = kinds.get(shape.key_type, int if shape.key_type in _BITS else ())
    else:
        wanted = (int, datetime)
    return all(each is None or (isinstance(each, wanted) and not isinstance(each, bool)) for each in values)


def _ordered(column: str, value: Any) -> Any:
    """The value so that Python orders it as Spark and the store do: texts by UTF-8, times as milliseconds."""
    if isinstance(value, list | tuple):
        return [_ordered(column, each) for each in value]
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, bytearray):
        return bytes(value)
    return value


# ---- keys


def _keys(span: _Span, shape: StoreShape, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[Any, ...] | None]:
    if any(name in given for name in ("lower", "upper", "prefix")):
        return {}, None
    if shape.key_type in _BITS:
        return (_of_integers(span, shape), None) if span.values is None else _of_values(span.values, shape)
    if shape.key_type in ("string", "bytes"):
        return (_of_texts(span, shape), None) if span.values is None else _of_values(span.values, shape)
    if shape.key_type == "json" and span.values and all(map(_is_json, span.values)):
        return _of_texts(_Span(lower=min(span.values), upper=max(span.values)), shape), None
    return {}, None


def _of_values(values: list[Any], shape: StoreShape) -> tuple[dict[str, str], tuple[Any, ...] | None]:
    """These keys alone. None of them at all is a range that ends before it begins."""
    if not values:
        first, last = (1, 0) if shape.key_type in _BITS else (b"b", b"a")
        return {"lower": _text(first, shape), "upper": _text(last, shape)}, None
    texts = [_text(value, shape) for value in values]
    if len(texts) == 1 and len(texts[0]) <= LONGEST_KEY:
        return {"lower": texts[0], "upper": texts[0]}, None
    if len(values) <= KEYS_MOST and max(map(_json_bytes, texts)) <= BYTES_AT_ONCE:
        return {}, tuple(values) if shape.key_type in _BITS else tuple(texts)
    limits = _Span(lower=min(values), upper=max(values))
    return _of_integers(limits, shape) if shape.key_type in _BITS else _of_texts(limits, shape), None


def _of_texts(span: _Span, shape: StoreShape) -> dict[str, str]:
    if span.prefix is not None:
        limits = {"prefix": _text(span.prefix, shape)}
    else:
        ends = {"lower": span.lower, "upper": span.upper}
        limits = {name: _text(value, shape) for name, value in ends.items() if value is not None}
    return {name: text for name, text in limits.items() if len(text) <= LONGEST_KEY}


def _is_json(text: bytes) -> bool:
    """Whether the server takes it for a key: a filter may compare with any text."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _of_integers(span: _Span, shape: StoreShape) -> dict[str, str]:
    """Bounds of one sign: as bytes, big-endian, negative numbers stand behind the others."""
    if span.lower is not None and span.lower >= 0:
        upper = {} if span.upper is None or span.upper < 0 else {"upper": str(span.upper)}
        return {"lower": str(span.lower), **upper}
    if span.upper is not None and span.upper < 0:
        least = -(2 ** (_BITS[shape.key_type] - 1))
        return {"lower": str(least if span.lower is None else span.lower), "upper": str(span.upper)}
    return {}


def _text(value: Any, shape: StoreShape) -> str:
    """A key as a URL writes it."""
    if shape.key_type == "bytes":
        return base64.urlsafe_b64encode(value).decode()
    return value.decode(errors="surrogatepass") if isinstance(value, bytes) else str(value)


# ---- times


def _times(spans: Mapping[str, _Span], shape: StoreShape, given: Mapping[str, str]) -> dict[str, str]:
    if "as_of" in given:
        return {}
    kind = plain_kind(shape.kind)
    if kind == "key_value":
        first, last = _both(spans, "timestamp", "timestamp") if is_timestamped(shape.kind) else (None, None)
    elif kind == "window":
        first, last = _both(spans, "start", "start")
    elif kind == "session":
        first, last = _both(spans, "end", "start")
    else:
        first, last = _both(spans, "valid_to", "timestamp")
        # A version is not valid any more at its `valid_to`: one that ends then was valid just before.
        first = None if first is None else first - 1
    found = {"from": first, "to": last}
    bounds = {name: _time_text(ms) for name, ms in found.items() if ms is not None and name not in given}
    return _overlapping(bounds, given) if kind in ("session", "versioned") else bounds


def _time_text(ms: int) -> str:
    """As a URL writes it: just eight digits would be taken for a date that somebody has typed."""
    text = str(ms)
    return text.zfill(9) if len(text) == 8 else text


def _both(spans: Mapping[str, _Span], lower: str, upper: str) -> tuple[int | None, int | None]:
    """The first millisecond that one column may have, and the last that the other may."""
    low, high = spans.get(lower, _Span()), spans.get(upper, _Span())
    firsts = [low.lower, *([min(low.values, key=_exact)] if low.values else [])]
    lasts = [high.upper, *([max(high.values, key=_exact)] if high.values else [])]
    first = max((_floor_ms(value) for value in firsts if value is not None), default=None)
    last = min((_ceil_ms(value) for value in lasts if value is not None), default=None)
    return first, last


def _overlapping(bounds: dict[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Of sessions and versions `from` and `to` mean what overlaps the time between them. What ends behind the one and
    begins before the other may span both, in whichever order they stand: then one of the two has to be enough."""
    both = {**bounds, **{name: given[name] for name in ("from", "to") if name in given}}
    if not {"from", "to"} <= both.keys():
        return bounds
    if all(_is_number(text) for text in both.values()) and int(both["from"]) <= int(both["to"]):
        return bounds
    return {name: text for name, text in bounds.items() if name == "to" and "from" not in given}


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _exact(value: Any) -> Any:
    return value if isinstance(value, int) else _aware(value)


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _floor_ms(value: int | datetime) -> int:
    return value if isinstance(value, int) else (_aware(value) - _EPOCH) // _MILLISECOND


def _ceil_ms(value: int | datetime) -> int:
    return value if isinstance(value, int) else -((_EPOCH - _aware(value)) // _MILLISECOND)
