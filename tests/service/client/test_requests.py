"""What is sent, against what the server's own parser reads."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit
from uuid import UUID

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateline.client
from stateline import serdes
from stateline.client import Client, JsonKey, Position
from stateline.client import requests as sent
from stateline.client.terms import Terms
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_body, from_query_string
from stateline_store import InvalidArgumentError, TopicPartition

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
BOUND = Position.of({TopicPartition("t", 0): 5, TopicPartition("t", 1): 7})


def received(request: sent.Request) -> tuple[list[bytes], Arguments]:
    """The decoded segments of the path, and the arguments, as a server takes them apart after httpx has sent them."""
    target = httpx.URL("http://h" + request.target).raw_path.decode()
    parts = urlsplit(target)
    arguments = from_query_string(parts.query.encode())
    if request.body is not None:
        arguments |= from_body(request.body)
    return [unquote_to_bytes(segment) for segment in parts.path.split("/")[1:]], Arguments(arguments)


@given(TEXT, TEXT)
def test_any_text_arrives_in_a_path_as_it_is(store: str, key: str) -> None:
    segments, _ = received(sent.key(store, key, Terms()))
    assert segments == [b"v1", b"stores", store.encode(), b"keys", key.encode()]


@pytest.mark.parametrize("key", [".", "..", "a/b", "%2F", "a?b#c", " ", "", "\n", "é"])
def test_keys_that_mean_something_in_a_path_are_only_keys(key: str) -> None:
    segments, _ = received(sent.parts("s", key, "windows", Terms(), {}).page(None))
    assert segments[4:] == [key.encode(), b"windows"]


@given(TEXT, TEXT)
def test_any_text_arrives_in_a_parameter_as_it_is(lower: str, upper: str) -> None:
    page = sent.entries("s", Terms(), {"lower": lower, "upper": upper}).page(None)
    _, arguments = received(page)
    assert arguments.key("lower", serdes.string) == lower.encode()
    assert arguments.key("upper", serdes.string) == upper.encode()


KEYS: list[tuple[Any, serdes.Serde, bytes]] = [
    ("text", serdes.string, b"text"),
    (-(2**63), serdes.int64, serdes.int64.serialize(-(2**63))),
    (7, serdes.int32, serdes.int32.serialize(7)),
    (0.1, serdes.float64, serdes.float64.serialize(0.1)),
    (1e300, serdes.float64, serdes.float64.serialize(1e300)),
    (b"\xff\x00\xfe", serdes.bytes, b"\xff\x00\xfe"),
    (JsonKey('{"a": [1,  2]}'), serdes.json, b'{"a": [1,  2]}'),
    ([1, {"a": "é"}], serdes.json, '[1,{"a":"é"}]'.encode()),
    (math.nan, serdes.float64, serdes.float64.serialize(math.nan)),
    (-math.inf, serdes.float64, serdes.float64.serialize(-math.inf)),
    (UUID(int=10), serdes.uuid, b"00000000-0000-0000-0000-00000000000a"),
    (datetime(2026, 1, 31, tzinfo=UTC), serdes.datetime, serdes.datetime.serialize(datetime(2026, 1, 31, tzinfo=UTC))),
]


@pytest.mark.parametrize(("key", "serde", "stored"), KEYS, ids=lambda value: type(value).__name__)
def test_a_key_is_the_same_in_a_path_and_in_a_body(key: Any, serde: serdes.Serde, stored: bytes) -> None:
    segments, _ = received(sent.key("s", key, Terms()))
    assert serde.parse_text(segments[-1].decode()) == stored
    body = sent.keys("s", [key], Terms()).body
    assert body is not None
    assert Arguments(from_body(body)).keys(serde, 1) == (stored,)


LONG = "é" * 2_000  # percent-encoded 12,000 bytes
WIDE = Position({f"{number}-{'x' * 240}": {0: number} for number in range(50)})


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (lambda key, terms: sent.key("s", key, terms, 7), {"type": "key", "as_of": 7}),
        (lambda key, terms: sent.parts("s", key, "windows", terms, {"time_from": 20_260_101}).page(None),
         {"type": "windows", "from": 20_260_101}),
        (lambda key, terms: sent.parts("s", key, "sessions", terms, {"order": "desc"}).stream(sent.ARROW),
         {"type": "sessions", "order": "desc"}),
        (lambda key, terms: sent.parts("s", key, "versions", terms, {"page_size": 3}).page(None),
         {"type": "versions", "limit": 3}),
    ],
)  # fmt: skip
def test_a_query_that_is_too_long_for_a_url_says_the_same_in_a_body(make: Any, own: dict[str, Any]) -> None:
    terms = Terms(bound=BOUND, wait_ms=5, partitions=(0, 2))
    short, long = make("k", terms), make(LONG, terms)
    assert (short.method, long.method, long.target) == ("GET", "POST", "/v1/stores/s/query")
    assert (long.accept, long.wait_ms, long.is_read) == (short.accept, 5, True)
    assert (long.home.key, long.home.partitions) == (LONG, short.home.partitions)
    said = {"key": LONG, "keys_as": "text", "position_bound": BOUND.to_json(), "wait_ms": 5, "partition": [0, 2]}
    assert orjson.loads(long.body) == own | said


@pytest.mark.parametrize(
    "make",
    [
        lambda terms: sent.count("s", terms),
        lambda terms: sent.position("s", terms),
        lambda terms: sent.entries("s", terms, {"lower": "a"}).page(None),
        lambda terms: sent.parts("s", None, "windows", terms, {}).page(None),
        lambda terms: sent.parts("s", None, "sessions", terms, {}).page(None),
    ],
)
def test_a_bound_that_is_too_long_for_a_url_goes_in_a_body_with_every_query(make: Any) -> None:
    short, long = make(Terms(bound=BOUND)), make(Terms(bound=WIDE))
    assert (short.method, long.method) == ("GET", "POST")
    assert orjson.loads(long.body)["position_bound"] == WIDE.to_json()


def test_a_key_that_is_too_long_for_a_url_goes_as_a_body() -> None:
    request = sent.key("s", "x" * 10_000, Terms(bound=BOUND, wait_ms=5))
    assert (request.method, request.target, request.is_read) == ("POST", "/v1/stores/s/query", True)
    assert orjson.loads(request.body or b"") == {
        "type": "key",
        "key": "x" * 10_000,
        "keys_as": "text",
        "position_bound": BOUND.to_json(),
        "wait_ms": 5,
    }


@pytest.mark.parametrize("key", [True, None, object(), "\ud800"])
def test_what_is_no_key_is_refused_before_it_is_sent(key: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        sent.key("s", key, Terms())
    with pytest.raises(InvalidArgumentError):
        sent.parts("s", sent.key_text(key), "windows", Terms(), {}).page(None)


def test_terms_arrive_by_the_contracts_names() -> None:
    terms = Terms("read_committed", BOUND, 250, True, (0, 2), True)
    for request in (sent.count("s", terms), sent.keys("s", ["k"], terms)):
        _, arguments = received(request)
        assert request.wait_ms == 250
        assert arguments.choice("isolation_level", "", ["read_committed"]) == "read_committed"
        assert arguments.bound(10).position == BOUND
        assert arguments.integer("wait_ms", 0, 0, 1000, "") == 250
        assert arguments.boolean("require_active")
        assert arguments.boolean("allow_partial")
        assert arguments.partitions() == (0, 2)


def test_what_was_not_given_is_not_sent() -> None:
    assert sent.count("s", Terms()).target == "/v1/stores/s/count"


def test_a_cursor_stands_alone_except_for_the_size_of_its_page() -> None:
    paged = sent.entries("s", Terms(wait_ms=5), {"prefix": "a", "page_size": 10, "limit": 25})
    assert paged.page(None).target == "/v1/stores/s/range?prefix=a&limit=10&wait_ms=5"
    assert paged.page("c+/=").target == "/v1/stores/s/range?cursor=c%2B%2F%3D&limit=10"


def test_a_time_is_milliseconds_or_a_datetime_with_its_zone() -> None:
    summer = timezone(timedelta(hours=2))
    late = datetime(1970, 1, 1, 2, 0, 1, 500_000, tzinfo=summer)
    page = sent.parts("s", None, "windows", Terms(), {"time_from": 7, "time_to": late}).page(None)
    assert page.target == "/v1/stores/s/windows?from=7&to=1500"
    assert sent.entries("s", Terms(), {"as_of": late}).page(None).target == "/v1/stores/s/range?as_of=1500"
    assert sent.key("s", "k", Terms(), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)).target.endswith("as_of=-1000")
    with pytest.raises(InvalidArgumentError, match="time zone"):
        sent.parts("s", None, "windows", Terms(), {"time_from": datetime(2026, 1, 1)})
    far = sent.key("s", "k", Terms(), datetime(2038, 9, 24, 5, 50, 31, 391_000, tzinfo=UTC)).target
    assert far.endswith("as_of=2168920231391")
    early = sent.parts("s", None, "windows", Terms(), {"time_from": 20_260_101}).page(None)
    assert "from=020260101" in early.target, "not what the server takes for a date"
    assert sent.key("s", "k", Terms(), 20_260_101_000_000).target.endswith("as_of=020260101000000")


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="limit=0"):
        sent.entries("s", Terms(), {"limit": 0})
    with pytest.raises(InvalidArgumentError, match="page_size=-1"):
        sent.entries("s", Terms(), {"page_size": -1})


def test_changes_begin_where_they_are_told_and_go_on_after_the_last_event() -> None:
    assert sent.changes("s", "earliest", None, None).target == "/v1/stores/s/changes?from=earliest"
    for last_id, begin in ((None, '{"t":{"1":5}}'), ('{"c": {"1": 9}}', '{"c":{"1":9}}')):
        _, arguments = received(sent.changes("s", Position.of({TopicPartition("t", 1): 5}), (0, 1), last_id))
        assert arguments.partitions() == (0, 1)
        assert arguments.text("from") == begin
    long = sent.changes("s", WIDE, (0, 1), None)
    assert (long.method, long.target, long.accept) == ("POST", "/v1/stores/s/changes", sent.EVENTS)
    assert orjson.loads(long.body or b"") == {"from": WIDE.to_json(), "partition": [0, 1]}


def test_a_stream_that_could_not_tell_what_failed_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="allow_partial"):
        sent.entries("s", Terms(allow_partial=True), {}).stream(sent.ARROW)


def test_a_misspelt_argument_is_refused() -> None:
    store = Client("http://localhost:1").store("s")
    with pytest.raises(TypeError, match="prefx"):
        store.range(prefx="a")  # type: ignore[call-arg]  # as an untyped caller might
    with pytest.raises(InvalidArgumentError, match="snapshot"):
        store.count(isolation_level="snapshot")  # type: ignore[call-overload]


def test_one_key_in_place_of_keys_and_an_exact_that_is_no_bool_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"keys='abc' is one key: give a list of keys, such as \['abc'\]"):
        Client("http://localhost:1").store("s").get_many("abc")
    with pytest.raises(InvalidArgumentError, match="exact='yes' is neither True nor False"):
        Client("http://localhost:1").store("s").count(exact="yes")  # type: ignore[call-overload]  # as above


def test_a_position_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"bound=.* is no Position"):
        Client("http://localhost:1").store("s").count(bound={"orders": 99})  # type: ignore[arg-type]  # as above
    with pytest.raises(InvalidArgumentError, match=r"since=.* is no Position"):
        sent.changes("s", {"orders": {"x": 99}}, None, None)


def test_all_public_names_are_there() -> None:
    assert [name for name in stateline.client.__all__ if not hasattr(stateline.client, name)] == []


def test_only_reads_may_be_sent_again() -> None:
    assert sent.keys("s", ["k"], Terms()).is_read
    changing = (sent.new_snapshot(["s"], 5), sent.renewal("i", 5), sent.release("i"))
    assert [request.is_read for request in changing] == [False] * 3
