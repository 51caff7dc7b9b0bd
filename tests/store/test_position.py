"""Position and PositionBound: bytes and rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    NewerFormatError,
    Position,
    PositionBound,
    TopicPartition,
)

OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.text(max_size=4), st.integers(0, 9)), st.integers(0, 2**63 - 1), max_size=6
)


def at(**topics: dict[int, int]) -> Position:
    return Position(topics)


@given(OFFSETS)
def test_what_was_encoded_is_decoded(offsets: dict[TopicPartition, int]) -> None:
    assert dict(Position.decode(Position.of(offsets).encode())) == offsets


def test_the_padding_follows_kafka_streams_formula() -> None:
    position = at(a={0: 1, 3: 2}, long={1: 7})
    content = bytes.fromhex(
        "00" "00000002"
        "00000001" "61" "00000002" "00000000" "0000000000000001" "00000003" "0000000000000002"
        "00000004" "6c6f6e67" "00000001" "00000001" "0000000000000007"
    )  # fmt: skip
    size = 8 + 32 + (32 + 1 + 32 + 96 * 2) + (32 + 4 + 32 + 96 * 1)
    assert position.encode() == content + bytes(size - len(content))
    assert Position().encode() == bytes(40)


def test_bytes_after_the_content_are_ignored() -> None:
    encoded = at(a={0: 1}).encode()
    unpadded = encoded[: 1 + 4 + 4 + 1 + 4 + 12]
    assert Position.decode(unpadded + b"\x07\x07") == Position.decode(unpadded) == at(a={0: 1})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x00\x01\xff\xff\xff\xff",
        at(a={0: 1}).encode()[:15],
    ],
)
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedDataError):
        Position.decode(data)


def test_another_version_is_a_newer_one_and_no_damage() -> None:
    with pytest.raises(NewerFormatError, match=r"the row has Position version 1; .* reads version 0"):
        Position.decode(b"\x01" + bytes(39), "the row")


@given(OFFSETS, OFFSETS)
def test_a_merge_takes_the_larger_offset(a: dict[TopicPartition, int], b: dict[TopicPartition, int]) -> None:
    merged = dict(Position.of(a).merge(Position.of(b)))
    assert merged == {tp: max(a.get(tp, -1), b.get(tp, -1)) for tp in a.keys() | b.keys()}


@given(OFFSETS)
def test_json_goes_there_and_back(offsets: dict[TopicPartition, int]) -> None:
    position = Position.of(offsets)
    assert dict(Position.from_json(position.to_json())) == offsets


@pytest.mark.parametrize("value", [[], {"t": 3}, {"t": {"x": 1}}, {"t": {"0": -1}}, {"t": {"0": True}}])
def test_json_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        Position.from_json(value)


@pytest.mark.parametrize(
    ("bound", "seen", "partition", "met", "why"),
    [
        (at(), at(), 0, True, "an empty bound is unbounded"),
        (at(a={0: 5}), at(a={0: 5}), 0, True, "equal passes"),
        (at(a={0: 5}), at(a={0: 6}), 0, True, "further passes"),
        (at(a={0: 5}), at(a={0: 4}), 0, False, "behind fails"),
        (at(a={0: 5}), at(), 0, False, "a topic never seen fails"),
        (at(a={0: 5}), at(a={1: 9}), 0, False, "another partition does not help"),
        (at(a={1: 5}), at(), 0, True, "another partition's entry is skipped"),
        (at(a={0: 5}, b={0: 1}), at(a={0: 5}), 0, False, "every topic counts"),
        (at(a={0: 5}, b={1: 1}), at(a={0: 5}), 0, True, "but only its own partition's"),
        (at(a={0: 5, 1: 2}), at(a={0: 5, 1: 2}), None, True, "a global store has every partition"),
        (at(a={0: 5, 1: 2}), at(a={0: 5, 1: 1}), None, False, "and each one counts"),
    ],
)
def test_a_bound_is_checked_for_the_own_partition_only_and_of_a_global_store_for_all(
    bound: Position, seen: Position, partition: int | None, met: bool, why: str
) -> None:
    assert PositionBound(bound).is_met(seen, partition) is met, why
