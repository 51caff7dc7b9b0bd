"""What goes over the query socket comes out as it went in, or is refused."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.query.values import CopyStatus, Entry, Failure, Outcome, PartitionAnswer, QueryRows, Rest, Terms
from stateline.query.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    Frames,
    WireRequest,
    decode_message,
    decode_outcome,
    decode_request,
    decode_rows,
    encode_outcome,
    encode_request,
    encode_rows,
    frame,
    frame_size,
)
from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    NotUpToBoundError,
    Order,
    Position,
    PositionBound,
    Query,
    RangeQuery,
    StatelineError,
    TopicPartition,
    VersionedRecord,
    Windowed,
)
from stateline_store import (
    queries as engine,
)

data = st.binary(max_size=20)
positions = st.dictionaries(
    st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 9)), st.integers(0, 2**63 - 1)
).map(Position.of)
moments = st.integers(-(2**63), 2**63 - 1)
times = st.none() | moments
entries = st.one_of(
    st.tuples(data, data),
    st.tuples(st.builds(Windowed, data, moments, moments), data),
    st.tuples(data, st.builds(VersionedRecord, data, moments, times)),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "key": data,
    "keys": st.lists(data).map(tuple),
    "order": st.sampled_from(Order),
    **dict.fromkeys(("lower", "upper", "prefix"), st.none() | data),
    **dict.fromkeys(("time_from", "time_to", "as_of", "most_bytes"), times),
}
queries: st.SearchStrategy[Query[Any]] = st.one_of(
    [st.builds(query, *(FIELDS[field.name] for field in fields(query))) for query in engine.QUERIES.values()]
)


def no_rest(number: int) -> Rest:
    raise AssertionError(f"there is no scan {number}")


def through_the_wire(message: dict[str, Any]) -> dict[str, Any]:
    framed = frame(message)
    assert frame_size(framed) == len(framed) - LENGTH.size
    return decode_message(framed[LENGTH.size :])


@given(queries, positions, st.sampled_from(IsolationLevel), st.booleans(), st.integers(0, 60_000))
def test_a_request_arrives_as_it_was_sent(
    query: Query[Any], bound: Position, level: IsolationLevel, require_active: bool, wait_ms: int
) -> None:
    terms = Terms("flights", level, PositionBound(bound), require_active, limit=7)
    request = WireRequest(7, terms, 3, query, wait_ms)
    assert decode_request(through_the_wire(encode_request(request))) == request


@given(st.lists(entries), st.integers(0, 2**40), st.integers(0, 2**40), positions)
def test_an_answer_arrives_as_it_was_sent(
    entries: list[Entry], count: int, interval_ms: int, position: Position
) -> None:
    answer = PartitionAnswer(QueryRows(entries, count, interval_ms), position, CopyStatus("standby", 1, 2, 3))
    assert decode_outcome(through_the_wire(encode_outcome(answer)), no_rest) == answer


class Numbered:
    """The rest of a scan, known by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def more(self, limit: int) -> QueryRows:
        raise AssertionError("nobody reads on")

    def close(self) -> None: ...


def test_what_a_scan_left_arrives_by_its_number() -> None:
    answer = PartitionAnswer(QueryRows([(b"k", b"v")]), Position(), CopyStatus("active", 0, 0, 0))
    arrived = decode_outcome(through_the_wire(encode_outcome(answer, 9)), Numbered)
    assert isinstance(arrived, PartitionAnswer)
    assert isinstance(arrived.rows.rest, Numbered)
    assert arrived.rows.rest.number == 9
    more = decode_rows(through_the_wire(encode_rows(QueryRows([(b"l", b"w")]), None)), Numbered)
    assert more == QueryRows([(b"l", b"w")])


@pytest.mark.parametrize("entry", [["YQ=="], ["YQ==", 1, 2], ["YQ==", "YQ==", "x", None], {}, None, ["é", "YQ=="]])
def test_entries_of_no_shape_that_there_is_are_refused(entry: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_rows(encode_rows(QueryRows(), None) | {"entries": [entry]}, no_rest)


def test_a_failure_keeps_its_kind_and_position() -> None:
    position = Position.of({TopicPartition("input", 1): 4})
    failure = decode_outcome(through_the_wire(encode_outcome(Failure(NotUpToBoundError("behind"), position))), no_rest)
    assert isinstance(failure, Failure)
    assert type(failure.error) is NotUpToBoundError
    assert (str(failure.error), failure.position) == ("behind", position)


def test_a_failure_of_the_store_arrives_as_one() -> None:
    outcome: Outcome = decode_outcome(through_the_wire(encode_outcome(Failure(DamagedDataError("torn")))), no_rest)
    assert isinstance(outcome, Failure)
    assert type(outcome.error) is StatelineError


IMPOSSIBLE = pytest.mark.parametrize("size", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])


@IMPOSSIBLE
def test_a_frame_of_impossible_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError):
        frame_size(LENGTH.pack(size))


@given(st.lists(st.integers(1, 300).map("x".__mul__), max_size=9), st.lists(st.integers(1, 500), max_size=9))
def test_frames_are_the_same_however_they_are_cut_into_pieces(texts: list[str], sizes: list[int]) -> None:
    stream = b"".join(frame({"text": text}) for text in texts)
    frames, found, at = Frames(), [], 0
    for size in [*sizes, len(stream)]:
        found += [decode_message(body)["text"] for body in frames.completed_by(stream[at : at + size])]
        at += size
    assert found == texts


@IMPOSSIBLE
def test_frames_before_one_of_impossible_length_are_taken(size: int) -> None:
    taken = Frames().completed_by(frame({"n": 1}) + LENGTH.pack(size))
    assert decode_message(next(taken)) == {"n": 1}
    with pytest.raises(InvalidArgumentError):
        next(taken)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
GOOD = encode_request(WireRequest(1, Terms("s", IsolationLevel.READ_COMMITTED), 0, RangeQuery(), 0))


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values))
def test_a_request_with_any_member_replaced_is_read_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidArgumentError):
        assert isinstance(decode_request(GOOD | changes), WireRequest)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidArgumentError):
        assert decode_message(body) == orjson.loads(body)


@pytest.mark.parametrize("text", ["a", "a===", "====", "é", 5, "YQ==YQ=="])
def test_text_that_is_not_base64_is_refused(text: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_request(GOOD | {"query": {"type": "KeyQuery", "key": text}})
