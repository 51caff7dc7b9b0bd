"""The place of a reader in a change feed, without a server: what it asks next, and what it takes for an end."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.client import (
    CursorExpiredError,
    NotReadyError,
    Position,
    Problem,
    Retries,
    UnexpectedAnswerError,
    UnreachableError,
)
from stateline.client.feed import Following
from stateline.server.rows.event_stream import HEARTBEAT, event_bytes, goodbye
from stateline_store import StatelineError

POLICY = Retries(deadline_s=5, first_pause_s=0.01)
START = b'retry: 20\nid: {"t": {"0": 4}}\n\n'


def change(offset: int) -> bytes:
    """What the server sends."""
    data = {"key": "k", "value": offset, "timestamp": 1, "partition": 0, "offset": offset}
    return event_bytes(data, name="change", position=orjson.dumps({"t": {"0": offset}}))


def begin_of(reader: Following) -> str:
    """Where the next request begins."""
    return parse_qs(urlsplit(reader.request().target).query)["from"][0]


def following() -> Following:
    return Following("s", "latest", None, POLICY)


@given(st.integers(0, 6), st.lists(st.integers(1, 400), max_size=5))
def test_changes_are_the_same_wherever_the_connection_is_cut(count: int, cuts: list[int]) -> None:
    """A server that goes on behind the last event that was whole loses and repeats none."""
    reader, found = following(), list[int]()
    reader.request()
    for cut in [*cuts, None]:
        stream = START + b"".join(HEARTBEAT + change(n) for n in range(len(found), count))
        found += [each.offset for each in reader.read(stream[:cut])]
        begins = begin_of(reader)
        assert begins in ("latest", '{"t":{"0":4}}', f'{{"t":{{"0":{len(found) - 1}}}}}')
    assert found == list(range(count))


def test_where_it_begins_is_remembered_before_anything_has_changed() -> None:
    reader = following()
    assert begin_of(reader) == "latest"
    assert list(reader.read(START)) == []
    assert begin_of(reader) == '{"t":{"0":4}}'
    assert begin_of(reader) == '{"t":{"0":4}}', "a connection that brought nothing"


def test_a_change_has_its_place() -> None:
    (found,) = following().read(change(7))
    assert (found.key, found.value, found.offset, found.position) == ("k", 7, 7, Position({"t": {0: 7}}))


def test_changes_before_an_end_are_given_first() -> None:
    reader, found = following(), list[int]()
    with pytest.raises(CursorExpiredError) as caught:
        found.extend(each.offset for each in reader.read(change(5) + goodbye("CURSOR_EXPIRED", "deleted")))
    assert caught.value.problem.detail == "deleted"
    assert [each.offset for each in following().read(change(5))] == [5]
    with pytest.raises(CursorExpiredError):
        reader.pause_s(caught.value)


@pytest.mark.parametrize("reason", ["NOT_READY", "TOO_SLOW"])
def test_an_end_that_can_be_taken_up_again_is_a_pause_as_long_as_the_server_asks(reason: str) -> None:
    reader = following()
    with pytest.raises(UnreachableError) as caught:
        list(reader.read(START + goodbye(reason, "later")))
    assert 0.02 <= reader.pause_s(caught.value) < 0.1


def test_an_end_without_a_reason_is_a_pause() -> None:
    assert following().pause_s(None) <= 0.01


def test_what_is_no_change_is_told() -> None:
    for data in (b"event: change\ndata: {\n\n", b"event: change\ndata: {}\n\n", b"event: change\ndata: 1\n\n"):
        with pytest.raises(UnexpectedAnswerError):
            list(following().read(data))


@pytest.mark.parametrize(
    "failure",
    [
        UnreachableError("lost"),
        NotReadyError(Problem(reason="NOT_READY", detail="", status=503)),
    ],
)
def test_a_server_that_stays_away_is_told_after_the_deadline(failure: StatelineError) -> None:
    reader = Following("s", "latest", None, Retries(deadline_s=0))
    with pytest.raises(type(failure)):
        reader.pause_s(failure)
