"""The words that HTTP has for the store's queries, and which of them a kind of store answers.

What a kind answers is the store library's to say (`stateline_store.queries`): here it is only named.
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from stateline_store import (
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    StoreKind,
    StoreSchema,
    UnknownQueryTypeError,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    queries,
)
from stateline_store.layout import plain_kind

# A kind that answers one of a word's queries answers the word. Counts and positions, which every kind has, need none.
_QUERIES: dict[str, tuple[type[Query[Any]], ...]] = {
    "key": (KeyQuery, VersionedKeyQuery),
    "keys": (KeysQuery, VersionedKeysQuery),
    "range": (RangeQuery, VersionedRangeQuery),
    "windows": (WindowKeyQuery,),
    "sessions": (SessionKeyQuery, SessionRangeQuery),
    "versions": (MultiVersionedKeyQuery,),
}
# A session store answers a WindowRangeQuery, too, but of one key: over HTTP that is "sessions".
_WORDS: dict[type[Query[Any]], str] = {
    **{query: word for word, some in _QUERIES.items() for query in some},
    PrefixQuery: "range",
    VersionedPrefixQuery: "range",
    WindowRangeQuery: "windows",
}


def check_answered(query: type[Query[Any]], store: str, kind: str) -> None:
    """Raise `UnknownQueryTypeError`, which names the kind as it is given, when a store of this kind cannot answer."""
    word = _WORDS.get(query)
    if word is None or query in (answered := _answered(kind)):
        return
    words = [each for each, some in _QUERIES.items() if not answered.isdisjoint(some)]
    # A kind that answers the word, and not this query of it, has no history.
    asked = "as_of" if word in words else repr(word)
    raise UnknownQueryTypeError(
        f"The store {store!r} is of kind {kind} and cannot answer {asked}: ask for {', '.join(words)} or count."
    )


@cache
def _answered(kind: str) -> frozenset[type[Query[Any]]]:
    plain = next(each for each in get_args(StoreKind) if each == plain_kind(kind))
    answered = frozenset(queries.answered_by(StoreSchema(plain)))
    return answered - {WindowRangeQuery} if plain == "session" else answered
