"""`QueryKind`: what one kind of query is, for HTTP, the console and the documentation. `kinds` has them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property
from typing import Any, TypeAlias

from stateline.query.values import Entry, SortKey
from stateline_store import Order, Query, Scan, StoreSchema, WindowRangeQuery, queries
from stateline_store.layout import STORE_KINDS, plain_kind

Schema: TypeAlias = Mapping[str, Any]
"""Member → its JSON schema."""
PAGING = ("limit", "cursor")
# Parameter → field of the library's query. All others have the same name there.
FIELD_OF = {"from": "time_from", "to": "time_to"}
_NOT_IN_URLS = frozenset({"key", "keys", "keys_as", "query"})
_CURSOR = {"type": "string", "description": "The cursor of the next page. Absent on the last page."}


@cache
def answered(kind: str) -> frozenset[type[Query[Any]]]:
    """The library's queries that this kind of store answers over HTTP."""
    plain = next(each for each in STORE_KINDS if each == plain_kind(kind))
    found = frozenset(queries.answered_by(StoreSchema(plain)))
    # A session store answers a WindowRangeQuery of one key. Over HTTP that is a SessionKeyQuery.
    return found - {WindowRangeQuery} if plain == "session" else found


@dataclass(frozen=True)
class QueryForm:
    """One query of the store library, as one of the ways to ask a kind."""

    query: type[Any]
    name: str = ""
    """Its name in the console's addresses. The form of a prefix has none: the console shows it with the range."""
    label: str = ""
    """Its name in the console's form."""
    order: SortKey | None = None
    """Of a scan: the key that sorts the entries of several partitions."""
    segment_order: Callable[[int], SortKey] | None = None
    """The same, if the order depends on the segment interval in milliseconds."""
    entries: Callable[[Any, Scan[Any], StoreSchema], Scan[Entry]] | None = None
    """Adds the key to the entries of a scan, if the library's result has none."""

    @cached_property
    def requires(self) -> frozenset[str]:
        """The fields without which it cannot be asked."""
        return frozenset(each.name for each in fields(self.query) if each.default is MISSING)

    @cached_property
    def takes(self) -> frozenset[str]:
        """Its fields, without a key that may be left out: that one has another meaning in the library."""
        return frozenset(each.name for each in fields(self.query)) - ({"key"} - self.requires)

    @property
    def of_key(self) -> bool:
        """Whether it asks for one key."""
        return "key" in self.requires


@dataclass(frozen=True)
class QueryKind:
    """One kind of query: its word over HTTP, and the forms in which stores answer it."""

    word: str
    forms: tuple[QueryForm, ...] = ()
    parameters: tuple[str, ...] = ()
    """Its own parameters, in a body. A URL has the key in its path."""
    of_key: str = ""
    """The summary of its path below a key; empty: it has no such path."""
    of_store: str = ""
    """The summary of its path below a store; empty: it has no such path."""
    entry: Schema | None = None
    """Of a scan: the members of an entry."""
    answer: Schema = field(default_factory=dict)
    """Of any other kind: the members of the answer."""
    required: frozenset[str] = frozenset()
    """The members that a body must have."""
    descends: bool = False
    """Whether its entries come in descending order by default."""
    unfit: str = ""
    """The error, if no form takes the parameters together."""

    @property
    def is_scan(self) -> bool:
        """Whether its answer has pages of entries."""
        return self.entry is not None

    def usual_order(self, *, of_key: bool, pages: bool) -> Order:
        """The order of its entries if the caller asks for none. A stream that has to be sorted by segments has any:
        sorting takes time."""
        if self.descends:
            return Order.DESCENDING
        by_segment = any(each.segment_order for each in self.forms if each.of_key is of_key)
        return Order.ANY if by_segment and not pages else Order.ASCENDING

    @property
    def result(self) -> Schema:
        """The members of its answer, beside those of every answer: name → schema."""
        return self.answer if self.entry is None else {"entries": entries_schema(self.entry), "cursor": _CURSOR}

    @property
    def of_every_store(self) -> bool:
        """Whether every kind of store answers it."""
        return bool(self.forms) and all(self.stores(each) for each in STORE_KINDS)

    @cached_property
    def url_parameters(self) -> tuple[str, ...]:
        """Its own parameters in a URL."""
        return tuple(name for name in self.parameters if name not in _NOT_IN_URLS)

    def paths(self) -> tuple[tuple[str, str, bool], ...]:
        """Its paths below a store, each with its summary, and whether it is a path below a key."""
        below_key = "/keys/{key}" if self.word == "key" else f"/keys/{{key}}/{self.word}"
        paths = ((below_key, self.of_key, True), (f"/{self.word}", self.of_store, False))
        return tuple(each for each in paths if each[1])

    def stores(self, kind: str, *, of_key: bool | None = None) -> tuple[QueryForm, ...]:
        """The forms that this kind of store answers: all, or those of one key, or those of no key."""
        able = answered(kind)
        return tuple(each for each in self.forms if each.query in able and of_key in (None, each.of_key))

    def shown_parameters(self, form: QueryForm) -> tuple[str, ...]:
        """The parameters of a form and of those that the same stores answer at the same path."""
        same = [
            each.takes
            for kind in STORE_KINDS
            if form in self.stores(kind)
            for each in self.stores(kind, of_key=form.of_key)
        ]
        takes = frozenset(PAGING).union(*same)
        return tuple(name for name in self.parameters if FIELD_OF.get(name, name) in takes)


def entries_schema(members: Schema) -> dict[str, Any]:
    """The schema of an array of entries with these members."""
    return {"type": "array", "items": {"type": "object", "properties": dict(members)}}
