"""Make every request of the HTTP API, without sending it.

A query is a URL. If the URL is longer than proxies accept, the query is a JSON body with the same meaning.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlencode
from uuid import UUID

import orjson

from stateline.client.terms import GivenPosition, TermArguments, Terms, parameter_text, position_of
from stateline.serde.iso_times import epoch_ms
from stateline.serde.plain import FloatSerde, JsonSerde, shown
from stateline_store import InvalidArgumentError

JSON = "application/json"
EVENTS = "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"
# By default, nginx accepts a request line of 8 KiB.
_LONGEST_URL = 7_500
_TIMES = ("from", "to", "as_of")
_KEYS = ("key", "keys", "lower", "upper", "prefix", "after")
_JSON, _FLOAT = JsonSerde(), FloatSerde()


@dataclass(frozen=True, slots=True)
class JsonKey:
    """A key of a type such as `json` or `avro`, which JSON shows.

    `text` is the key in a URL, and finds the row. For type `json` it is the JSON text, byte for byte. `value` is the
    key's JSON value. Keys with equal texts are equal. Raises `InvalidArgumentError` if the text is not JSON, unless
    `value` is given.
    """

    text: str
    value: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.value is None and not self.text.startswith("base64:"):
            object.__setattr__(self, "value", _JSON.deserialize(self.text.encode()))


Key = str | int | float | bytes | UUID | datetime | list[Any] | dict[str, Any] | JsonKey
"""A key. Lists and dicts become compact JSON, as `serdes.json` writes them."""
Time = int | datetime
"""Milliseconds since the epoch, or a `datetime` with a time zone."""
Order = Literal["asc", "desc"]
Part = Literal["windows", "sessions", "versions"]
Since = GivenPosition | Literal["earliest", "latest"]
"""The beginning of changes: after a Position, with the first change in the log, or with the next one."""


class PageArguments(TypedDict, total=False):
    """`limit` is the number of entries altogether, `page_size` the number per answer, `order` their order."""

    limit: int | None
    page_size: int | None
    order: Order


class KeyBounds(TypedDict, total=False):
    """Keys from lower to upper, both inclusive, or with a prefix."""

    lower: Key | None
    upper: Key | None
    prefix: Key | None


class TimeBounds(TypedDict, total=False):
    """Times, both inclusive."""

    time_from: Time | None
    time_to: Time | None


class RangeArguments(KeyBounds, PageArguments, TermArguments, total=False):
    """Arguments of a range. In a versioned store, `as_of` is a time."""

    as_of: Time | None


class TimeArguments(TimeBounds, PageArguments, TermArguments, total=False):
    """Arguments of windows, sessions and versions."""


class RowArguments(KeyBounds, TimeBounds, total=False):
    """Arguments of a snapshot's rows. Their order is always the same.

    `columns`: all if None. `after`: only later keys. `keys`: only these keys. `as_of`: the versions of this time.
    `skip` leaves out the first so many of the selected rows."""

    columns: Sequence[str] | None
    after: Key | None
    keys: Iterable[Key] | None
    as_of: Time | None
    skip: int | None


@dataclass(frozen=True, slots=True)
class Home:
    """The key or partitions of a request. They decide the node to ask."""

    store: str
    key: Key | None = None
    partitions: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `target` is path and query string, percent-encoded."""

    method: str
    target: str
    body: bytes | None = None
    accept: str = JSON
    is_read: bool = True
    """Whether it changes nothing, so that it may be retried."""
    wait_ms: int = 0
    """Milliseconds that the server may take in addition."""
    home: Home | None = None
    """Set for a query that one node may answer."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a store. `kind` is its name in a body, and the end of its path."""

    store: str
    kind: str
    terms: Terms
    members: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    """The key's text; None for a query of no single key."""

    def request(self, accept: str = JSON, limit: int | None = None) -> Request:
        """Return the request for all entries, or for at most `limit`."""
        above = "" if self.key is None else f"/keys/{_segment(self.key)}"
        members = {**self.members, "limit": limit}
        path = f"{_store(self.store)}{above}{'' if self.kind == 'key' else f'/{self.kind}'}"
        request = _get(path, members, self.terms)
        if len(request.target) > _LONGEST_URL:
            request = _query(self.store, self.kind, {"key": self.key, **members}, self.terms)
        return replace(request, accept=accept, home=Home(self.store, self.key, self.terms.partitions))


@dataclass(frozen=True, slots=True)
class Paged:
    """A query that is answered in pages of `page_size` entries (default: the server's)."""

    query: Query
    page_size: int | None
    limit: int | None

    def page(self, cursor: str | None) -> Request:
        """Return the request for the page of this cursor, or for the first page (None). A cursor has the rest of the
        query."""
        sizes = [size for size in (self.page_size, self.limit) if size is not None]
        limit = min(sizes) if sizes else None
        if cursor is not None:
            return _get(f"{_store(self.query.store)}/range", {"cursor": cursor, "limit": limit}, Terms())
        return self.query.request(limit=limit)

    def stream(self, accept: str) -> Request:
        """Return the request for all entries in one stream, without the limit. Raises `InvalidArgumentError` with
        `allow_partial`."""
        if self.query.terms.allow_partial:
            raise InvalidArgumentError("A stream does not say which partitions failed: leave out allow_partial.")
        return self.query.request(accept)


def key(store: str, key: Key, terms: Terms, as_of: Time | None = None) -> Request:
    """Make the request for the value of one key, now or at a time."""
    return Query(store, "key", terms, {"as_of": time_ms("as_of", as_of)}, key_text(key)).request()


def keys(store: str, keys: Iterable[Key], terms: Terms) -> Request:
    """Make the request for many keys. Raises `InvalidArgumentError` if `keys` is one text or bytes."""
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(f"keys={shown(keys)} is one key: give a list of keys, such as [{shown(keys)}].")
    return _query(store, "keys", {"keys": [key_text(key) for key in keys]}, terms)


def entries(store: str, terms: Terms, given: RangeArguments) -> Paged:
    """Make the requests for a range of keys."""
    members = {**_bounds(given), "as_of": time_ms("as_of", given.get("as_of")), "order": given.get("order")}
    return _paged(Query(store, "range", terms, members), given)


def parts(store: str, key: str | None, what: Part, terms: Terms, given: TimeArguments) -> Paged:
    """Make the requests for windows, sessions or versions of the key with this text, or of every key (None)."""
    return _paged(Query(store, what, terms, {**_times(given), "order": given.get("order")}, key), given)


def count(store: str, terms: Terms, *, exact: bool = False) -> Request:
    """Make the request for the number of entries. Raises `InvalidArgumentError` unless `exact` is a bool."""
    if not isinstance(exact, bool):
        raise InvalidArgumentError(f"exact={shown(exact)} is neither True nor False.")
    return Query(store, "count", terms, {"exact": True} if exact else {}).request()


def position(store: str, terms: Terms) -> Request:
    """Make the request for the Position of each partition."""
    return Query(store, "position", terms).request()


def details(store: str) -> Request:
    """Make the request for a store's declaration and partitions."""
    return Request("GET", _store(store))


def changes(store: str, since: Since, partitions: Sequence[int] | None, last_id: str | None) -> Request:
    """Make the request for changes after `since`, or after the event with this id."""
    begin = since if isinstance(since, str) else position_of("since", since).to_json()
    if last_id is not None:
        begin = orjson.loads(last_id)
    members = {"from": begin, "partition": None if partitions is None else list(partitions)}
    path = f"{_store(store)}/changes"
    return replace(_short(_get(path, members, Terms()), path, members), accept=EVENTS)


STORES = Request("GET", "/v1/stores")
TOPOLOGY = Request("GET", "/v1/topology")
INSTANCES = Request("GET", "/v1/instances")
NODES = Request("GET", "/v1/nodes")
HEALTH = Request("GET", "/healthz")
READINESS = Request("GET", "/readyz")
SNAPSHOTS = Request("GET", "/v1/snapshots")


def snapshot(snapshot: str) -> Request:
    """Make the request for one snapshot's details."""
    return Request("GET", f"/v1/snapshots/{_segment(snapshot)}")


def new_snapshot(stores: Sequence[str], ttl_s: float | None, pin: str | None = None) -> Request:
    """Make the request to take a snapshot. It is retried only with a pin, because the same pin returns the same
    snapshot. Without one, each retry would keep disk until its lease ends. Raises `InvalidArgumentError` for a name
    instead of a list.
    """
    refuse_text("stores", stores)
    given = {"ttl_s": ttl_s, "pin": pin}
    members = {"stores": list(stores), **{name: value for name, value in given.items() if value is not None}}
    return Request("POST", "/v1/snapshots", orjson.dumps(members), is_read=pin is not None)


def refuse_text(name: str, given: object) -> None:
    """Raise `InvalidArgumentError` for a text instead of a list, whose characters would be taken one by one."""
    if isinstance(given, str):
        raise InvalidArgumentError(f"{name}={given[:60]!r} is a text: give a list, as in [{given[:60]!r}].")


def renewal(snapshot: str, ttl_s: float | None) -> Request:
    """Make the request to renew a snapshot's lease."""
    body = orjson.dumps({} if ttl_s is None else {"ttl_s": ttl_s})
    return Request("PATCH", f"/v1/snapshots/{_segment(snapshot)}", body, is_read=False)


def release(snapshot: str) -> Request:
    """Make the request to release a snapshot."""
    return Request("DELETE", f"/v1/snapshots/{_segment(snapshot)}", is_read=False)


def snapshot_rows(snapshot: str, store: str, partition: int, given: RowArguments) -> Request:
    """Make the request for one partition of a snapshot, as an Arrow stream."""
    path = f"/v1/snapshots/{_segment(snapshot)}/stores/{_segment(store)}/partitions/{partition}"
    columns, after, keys = given.get("columns"), given.get("after"), given.get("keys")
    members = {
        "columns": None if columns is None else ",".join(columns),
        "after": None if after is None else key_text(after),
        **_bounds(given),
        "as_of": time_ms("as_of", given.get("as_of")),
        "skip": given.get("skip"),
        **_times(given),
    }
    if keys is not None:
        request = _post(path, {"keys": [key_text(key) for key in keys], **members})
    else:
        request = _short(_get(path, members, Terms()), path, members)
    return replace(request, accept=ARROW)


def _paged(query: Query, given: PageArguments) -> Paged:
    page_size, limit = given.get("page_size"), given.get("limit")
    for name, size in (("page_size", page_size), ("limit", limit)):
        if size is not None and size < 1:
            raise InvalidArgumentError(f"{name}={size} is out of range: 1 or more is accepted.")
    return Paged(query, page_size, limit)


def _query(store: str, kind: str, members: Mapping[str, Any], terms: Terms) -> Request:
    request = _post(f"{_store(store)}/query", {"type": kind, **members, **terms.members()})
    return replace(request, wait_ms=terms.wait_ms or 0)


def _short(request: Request, path: str, members: Mapping[str, Any]) -> Request:
    """Return the request. If its URL is too long, return the same request with a body."""
    return request if len(request.target) <= _LONGEST_URL else _post(path, members)


def _post(path: str, members: Mapping[str, Any]) -> Request:
    """Make a read with a body. Its keys are texts, as in a URL."""
    given = {name: value for name, value in members.items() if value is not None}
    as_text = {} if given.keys().isdisjoint(_KEYS) else {"keys_as": "text"}
    return Request("POST", path, orjson.dumps({**given, **as_text}))


def _get(path: str, members: Mapping[str, Any], terms: Terms) -> Request:
    given = {n: _parameter(n, value) for n, value in {**members, **terms.members()}.items() if value is not None}
    query = urlencode(given, quote_via=quote, safe="")
    return Request("GET", f"{path}?{query}" if query else path, wait_ms=terms.wait_ms or 0)


def _parameter(name: str, value: Any) -> str:
    """Return a member as text of a URL. Times of 8 or 14 digits get a 0 in front, because the server reads those as
    dates."""
    text = parameter_text(value)
    return (
        f"0{text}" if name in _TIMES and isinstance(value, int) and text.isdecimal() and len(text) in (8, 14) else text
    )


def _store(store: str) -> str:
    return f"/v1/stores/{_segment(store)}"


def _segment(text: str) -> str:
    """Return the text as a segment of a path. A segment of dots alone would mean another folder, so its dots are
    encoded. Raises `InvalidArgumentError` if it is not Unicode text."""
    try:
        return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{text[:60]!r} cannot be written as UTF-8.") from error


def key_text(key: Key) -> str:
    """Return a key as a URL writes it. Raises `InvalidArgumentError` for other types."""
    match key:
        case str():
            return key
        case bytes():
            return base64.urlsafe_b64encode(key).decode()
        case JsonKey():
            return key.text
        case UUID():
            return str(key)
        case datetime():
            return key.isoformat()
        case list() | dict():
            return _JSON.serialize(key).decode()
        case float():
            return _FLOAT.special_text(_FLOAT.serialize(key)) or repr(key)
        case int() if not isinstance(key, bool):
            return repr(key)
    raise InvalidArgumentError(
        f"{shown(key)} is no key: text, numbers, bytes, UUIDs, times, lists, dicts and JsonKey are."
    )


def _bounds(given: KeyBounds) -> dict[str, str]:
    bounds = {"lower": given.get("lower"), "upper": given.get("upper"), "prefix": given.get("prefix")}
    return {name: key_text(key) for name, key in bounds.items() if key is not None}


def _times(given: TimeBounds) -> dict[str, int | None]:
    times = {"from": given.get("time_from"), "to": given.get("time_to")}
    return {name: time_ms(f"time_{name}", time) for name, time in times.items()}


def time_ms(name: str, time: Time | None) -> int | None:
    """Return the time in milliseconds since the epoch. Raises `InvalidArgumentError` without a time zone."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InvalidArgumentError(f"{name}={time.isoformat()} has no time zone: give it one, or milliseconds.")
    return epoch_ms(time)
