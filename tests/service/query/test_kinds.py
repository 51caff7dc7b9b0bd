"""The declarations of queries: all are there once, and what is derived from them fits together."""

from __future__ import annotations

import pytest

from stateline.query.kinds import BY_WORD, KINDS, every_entry, key_of, path_of, query_of
from stateline_store import (
    KeysQuery,
    MultiVersionedKeyQuery,
    Order,
    PrefixQuery,
    RangeQuery,
    SessionRangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    UnknownQueryTypeError,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    queries,
)
from stateline_store.layout import STORE_KINDS


def test_each_query_of_the_library_is_declared_once() -> None:
    declared = [form.query for kind in KINDS for form in kind.forms]
    assert len(declared) == len(set(declared))
    assert set(queries.QUERIES.values()) - set(declared) == {TimestampedKeyQuery, TimestampedRangeQuery}


def test_the_parameters_and_the_store_choose_the_form() -> None:
    nothing = {"lower": None, "upper": None, "prefix": None, "as_of": None}
    ranges = BY_WORD["range"]
    assert query_of(ranges, "s", "key_value", nothing) == RangeQuery()
    assert query_of(ranges, "s", "timestamped_key_value", nothing | {"prefix": b"p"}) == PrefixQuery(b"p")
    assert query_of(ranges, "s", "versioned", nothing | {"lower": b"l"}) == VersionedRangeQuery(b"l")
    assert query_of(ranges, "s", "versioned", nothing | {"prefix": b"p", "as_of": 7}) == VersionedPrefixQuery(b"p", 7)
    times = {"from": 1, "to": None}
    down = WindowKeyQuery(b"k", 1, None, Order.DESCENDING)
    assert query_of(BY_WORD["windows"], "s", "window", {"key": b"k", **times}, order=Order.DESCENDING) == down
    assert query_of(BY_WORD["windows"], "s", "window", {"key": None, **times}) == WindowRangeQuery(None, 1)
    keys = {"keys": (b"k",), "as_of": None}
    assert query_of(BY_WORD["keys"], "s", "key_value", keys, most_bytes=9) == KeysQuery((b"k",), 9)


def test_a_store_that_does_not_answer_a_kind_refuses_it_before_its_parameters() -> None:
    with pytest.raises(UnknownQueryTypeError, match="cannot answer 'versions': ask for key, keys, range or count"):
        query_of(BY_WORD["versions"], "s", "key_value", {"key": None})


def test_every_kind_of_store_has_a_query_of_all_its_entries() -> None:
    found = {kind: type(every_entry(kind)) for kind in STORE_KINDS}
    assert list(found.values()) == [RangeQuery, WindowRangeQuery, SessionRangeQuery, VersionedRangeQuery]


def test_a_scan_has_one_path() -> None:
    assert path_of(WindowRangeQuery()) == "/windows"
    assert path_of(VersionedPrefixQuery(b"p")) == "/range"
    versions = MultiVersionedKeyQuery(b"k")
    assert (path_of(versions), key_of(versions)) == ("/keys/{key}/versions", b"k")
