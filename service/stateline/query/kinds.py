"""`KINDS`: each kind of query, declared once.

`stateline_store.reads.queries` runs a query on one partition. Everything else is derived from the declaration here: the
paths and bodies over HTTP, their OpenAPI schemas, the order of the entries of several partitions, the form of the
console and the table in `docs/http/queries.md`. A query that has entries needs no other code. Pure: no files, no
sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from stateline.query.query_kind import FIELD_OF, PAGING, QueryForm, QueryKind, answered, entries_schema
from stateline.query.values import Entry, ScanQuery, SortKey
from stateline_store import (
    CountQuery,
    InvalidArgumentError,
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    Order,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    Scan,
    SessionKeyQuery,
    SessionRangeQuery,
    StoreSchema,
    UnknownQueryTypeError,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    window_end_ms,
)
from stateline_store.reads.session_reads import stored_order
from stateline_store.rows.windowed_keys import session_order, window_key
from stateline_store.scan import LARGEST_CHUNK, LARGEST_CHUNK_BYTES

_BY_KEY = itemgetter(0)
_TIMES = ("from", "to", "order", *PAGING)

ANY = {"description": "Any JSON value, in the store's type."}
STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
POSITION_SCHEMA = {"$ref": "#/components/schemas/Position"}
_MILLISECONDS = {"type": ["integer", "null"], "description": "Milliseconds since the epoch. null: not known."}
_KEY_TEXT = {
    "type": "string",
    "description": "The key as the text of a URL. Present if `key` does not find the entry again.",
}
_HEADERS = {
    "type": ["array", "null"],
    "items": {"type": "array"},
    "description": 'Pairs of a name and a text, null, or {"base64"}. Present in a store with headers.',
}
_ENTRY = {"key": ANY, "key_text": _KEY_TEXT, "value": ANY, "timestamp": _MILLISECONDS, "headers": _HEADERS}
_VALID_TO = {"type": ["integer", "null"], "description": "The end of the version's validity. null: it is still valid."}
_FOUND = {"found": BOOLEAN, **_ENTRY, "valid_to": _VALID_TO}
_WINDOW = {**_ENTRY, "start": INTEGER, "end": INTEGER}
_BY_PARTITION = {"type": "object", "additionalProperties": POSITION_SCHEMA}


def _windows_of_key(query: WindowKeyQuery, result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    def chunks() -> Generator[list[Entry], None, None]:
        key, size_ms = query.key, schema.window_size_ms
        with result as windows:
            for chunk in windows.chunks():
                yield [(Windowed(key, start_ms, window_end_ms(start_ms, size_ms)), value) for start_ms, value in chunk]

    return Scan.of_chunks(chunks())


def _versions_of_key(query: MultiVersionedKeyQuery, result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    del schema

    def chunks() -> Generator[list[Entry], None, None]:
        with result as versions:
            chunk, size = list[Entry](), 0
            for version in versions:
                chunk.append((query.key, version))
                size += len(version.value)
                if size >= LARGEST_CHUNK_BYTES or len(chunk) == LARGEST_CHUNK:
                    yield chunk
                    chunk, size = [], 0
            if chunk:
                yield chunk

    return Scan.of_chunks(chunks())


def _by_segment(interval_ms: int) -> SortKey:
    # By the row's own bytes: if one key begins with another, they are not in the order of the keys.
    return lambda entry: (entry[0].start_ms // interval_ms, window_key(entry[0].key, entry[0].start_ms))


KINDS = (
    QueryKind(
        "key",
        (
            QueryForm(KeyQuery, "key", "One key"),
            QueryForm(VersionedKeyQuery, "versioned_key", "One key, now or as of a time"),
        ),
        ("key", "keys_as", "as_of"),
        of_key="The value of a key, now or at a time.",
        answer=_FOUND,
        required=frozenset({"key"}),
    ),
    QueryKind(
        "keys",
        (
            QueryForm(KeysQuery, "keys", "Many keys"),
            QueryForm(VersionedKeysQuery, "versioned_keys", "Many keys, now or as of a time"),
        ),
        ("keys", "keys_as", "as_of"),
        answer={"entries": entries_schema(_FOUND)},
        required=frozenset({"keys"}),
    ),
    QueryKind(
        "range",
        (
            QueryForm(RangeQuery, "range", "Range or prefix", _BY_KEY),
            QueryForm(PrefixQuery, order=_BY_KEY),
            QueryForm(VersionedRangeQuery, "versioned_range", "Range or prefix, now or as of a time", _BY_KEY),
            QueryForm(VersionedPrefixQuery, order=_BY_KEY),
        ),
        ("lower", "upper", "prefix", "as_of", "order", *PAGING, "keys_as"),
        of_store="Entries of a range of keys or of a prefix, by serialized key. "
        "In a versioned store, now or at a time.",
        entry={**_ENTRY, "valid_to": _VALID_TO},
        unfit="prefix stands alone: leave out lower and upper, or prefix.",
    ),
    QueryKind(
        "windows",
        (
            QueryForm(
                WindowKeyQuery,
                "key_windows",
                "Windows of a key",
                lambda entry: entry[0].start_ms,
                entries=_windows_of_key,
            ),
            QueryForm(WindowRangeQuery, "windows", "Windows of all keys", segment_order=_by_segment),
        ),
        ("key", "keys_as", *_TIMES),
        of_key="The windows of a key, by start.",
        of_store="The windows of all keys, segment by segment of time. Within a segment by key and start.",
        entry=_WINDOW,
    ),
    QueryKind(
        "sessions",
        (
            QueryForm(
                SessionKeyQuery, "sessions", "Sessions of a key", lambda entry: (entry[0].end_ms, entry[0].start_ms)
            ),
            QueryForm(SessionRangeQuery, "all_sessions", "Sessions of all keys", session_order),
        ),
        ("key", "keys_as", *_TIMES),
        of_key="The sessions of a key, by end.",
        of_store="The sessions of all keys that end between `from` and `to`, by serialized key, then end.",
        entry=_WINDOW,
    ),
    QueryKind(
        "versions",
        (
            QueryForm(
                MultiVersionedKeyQuery,
                "versions",
                "Versions of a key",
                lambda entry: entry[1].timestamp,
                entries=_versions_of_key,
            ),
        ),
        ("key", "keys_as", *_TIMES),
        of_key="The versions of a key that were valid at some time between `from` and `to`.",
        entry={"value": ANY, "timestamp": INTEGER, "valid_to": _VALID_TO},
        descends=True,
        unfit="key is missing.",
    ),
    QueryKind(
        "count",
        (QueryForm(CountQuery, "count", "Count"),),
        ("exact",),
        of_store="The number of entries, counted or estimated.",
        answer={"approximate_entries": INTEGER, "exact_entries": INTEGER},
    ),
    QueryKind(
        "position",
        (QueryForm(PositionQuery, "position", "Position"),),
        of_store="The Position of each partition.",
        answer={"committed": _BY_PARTITION, "uncommitted": _BY_PARTITION},
    ),
    QueryKind(
        "custom",
        parameters=("query",),
        answer={"results": {"type": "object", "description": "Partition → the return value of the store's method."}},
        required=frozenset({"query"}),
    ),
)
BY_WORD = {kind.word: kind for kind in KINDS}
_KIND_OF = {form.query: kind for kind in KINDS for form in kind.forms}
_SCANS = {form.query: form for kind in KINDS if kind.is_scan for form in kind.forms}


@dataclass(frozen=True, slots=True)
class CustomQuery(Query[bytes]):
    """A query of the application's own, which a store answers by its method `query` (`stateline_store.StateStore`).

    `query` is JSON. The result is JSON too: the value of one entry, whose key is empty.
    """

    query: bytes


def check_answered(query: type[Query[Any]], store: str, kind: str) -> None:
    """Raise `UnknownQueryTypeError` if a store of this kind cannot answer the query. The error names the kind."""
    asked = _KIND_OF.get(query)
    if asked is None or query in answered(kind):
        return
    words = [each.word for each in KINDS if each.stores(kind) and not each.of_every_store]
    # A kind that answers the word, and not this query of it, has no history.
    shown = "as_of" if asked.word in words else repr(asked.word)
    raise UnknownQueryTypeError(
        f"The store {store!r} is of kind {kind} and cannot answer {shown}: ask for {', '.join(words)} or count."
    )


def query_of(asked: QueryKind, store: str, kind: str, given: Mapping[str, Any], **others: Any) -> Query[Any]:
    """The library's query for these parameters. None stands for a parameter that was not given.

    The form is the first that the store answers and that takes the parameters. If the store answers none of these,
    it is the first of them, which `check_answered` refuses later. `others` are fields for a form that has them.
    Raises `InvalidArgumentError` if no form takes the parameters, and before that `UnknownQueryTypeError` if the
    store does not answer this kind.
    """
    values = {FIELD_OF.get(name, name): value for name, value in given.items()}
    named = {name for name, value in values.items() if value is not None}
    fit = [each for each in asked.forms if each.requires <= named <= each.takes]
    if not fit:
        check_answered(asked.forms[0].query, store, kind)
        raise InvalidArgumentError(asked.unfit)
    able = answered(kind)
    form = next((each for each in fit if each.query in able), fit[0])
    values |= others
    found: Query[Any] = form.query(**{name: values[name] for name in form.takes if name in values})
    return found


def every_entry(kind: str) -> ScanQuery:
    """The query of all entries of a store of this kind."""
    able = answered(kind)
    found: ScanQuery = next(form.query for form in _SCANS.values() if form.query in able and not form.requires)()
    return found


def is_scan(query: Query[Any]) -> bool:
    """Whether its result is a scan."""
    return type(query) in _SCANS


def key_of(query: ScanQuery) -> bytes | None:
    """The one key that it asks for. None: it asks for all keys."""
    key: bytes | None = getattr(query, "key", None)
    return key


def path_of(query: ScanQuery) -> str:
    """Its path below a store."""
    is_of_key = key_of(query) is not None
    return next(path for path, _, of_key in _KIND_OF[type(query)].paths() if of_key is is_of_key)


def descends(query: ScanQuery) -> bool:
    """Whether its entries come in descending order."""
    return _order(query) is Order.DESCENDING


def _order(query: ScanQuery) -> Order | None:
    order: Order | None = getattr(query, "order", None)
    return order


def entries_of(query: ScanQuery, result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    """The library's result as a scan of entries that have their keys."""
    with_key = _SCANS[type(query)].entries
    return result if with_key is None else with_key(query, result, schema)


def sort_key(query: ScanQuery, intervals_ms: Set[int], *, stored: bool = False) -> SortKey | None:
    """The key that sorts the entries of all partitions, in the order that each partition has.

    `intervals_ms` are the segment intervals of the partitions. Returns None if they differ, after a change of the
    retention, and the order depends on them: then the partitions' entries have no common order. Returns None for
    windows of all keys in any order, too. `stored`: the entries are stored rows.
    """
    form = _SCANS[type(query)]
    if form.segment_order is None:
        return stored_order if stored else form.order
    if len(intervals_ms) > 1 or _order(query) is Order.ANY:
        return None
    return _BY_KEY if stored else form.segment_order(next(iter(intervals_ms), 1) or 1)
