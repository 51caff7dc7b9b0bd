"""Values of a grouped table's repartition topic: bytes that kafka-streams 4.4.0 wrote or reads, and bytes that it does
not."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline import serdes
from stateline.serde.change import ADDED, REMOVED, REPLACED, ChangeSerde, OldAndNew, joined, kind_of, parted
from stateline_store import InvalidArgumentError

TEXTS = ChangeSerde(serdes.string)
WRITTEN = {  # by `ChangedSerializer`
    "66313a7100": OldAndNew("f1:q", None),
    "66313a7101": OldAndNew(None, "f1:q"),
    "0866313a7266313a7102": OldAndNew("f1:q", "f1:r"),
    "000002": OldAndNew("\0", ""),
    "00": OldAndNew("", None),
}
READ = {
    "66313a710103": OldAndNew("f1:q", None),
    "66313a710004": OldAndNew(None, "f1:q"),
    "026261" + "0105": OldAndNew("a", "b"),
}


@pytest.mark.parametrize("data", WRITTEN)
def test_a_change_has_the_bytes_of_kafka_streams(data: str) -> None:
    assert TEXTS.serialize(WRITTEN[data]).hex() == data


@pytest.mark.parametrize("data", [*WRITTEN, *READ])
def test_every_kind_of_change_that_kafka_streams_reads_is_read(data: str) -> None:
    TEXTS.check(bytes.fromhex(data))
    change = TEXTS.deserialize(bytes.fromhex(data))
    assert change == {**WRITTEN, **READ}[data]
    assert (
        kind_of(bytes.fromhex(data))
        == {(True, True): REPLACED, (True, False): REMOVED, (False, True): ADDED}[
            change.old is not None, change.new is not None
        ]
    )


@pytest.mark.parametrize(
    "data", ["", "06", "6106", "03", "02", "8002", "0361616102", "ffffffffffff02", "0a616102", "05"], ids=repr
)
def test_other_bytes_are_refused(data: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no change of a grouped table"):
        TEXTS.check(bytes.fromhex(data))


def test_a_row_that_its_serde_cannot_read_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="int64"):
        ChangeSerde(serdes.int64).check(b"abc\1")


@given(st.none() | st.binary(max_size=20_000), st.none() | st.binary(max_size=20_000))
def test_what_is_joined_is_parted_again(old: bytes | None, new: bytes | None) -> None:
    if (old, new) != (None, None):
        assert parted(joined(old, new)) == (old, new)


def test_a_change_in_json_has_both_rows() -> None:
    data = TEXTS.serialize(("a", "b"))
    assert orjson.dumps(TEXTS.to_json(data)) == b'{"old":"a","new":"b"}'
    assert TEXTS.from_json({"old": "a", "new": "b"}) == data
    assert TEXTS.parse_text('{"new": "b"}') == b"b\1"
    for wrong in ("[]", "{}", "{", '"a"', '{"old": null}'):
        with pytest.raises(InvalidArgumentError, match="change"):
            TEXTS.parse_text(wrong)
