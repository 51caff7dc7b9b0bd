"""What a group notes with its offsets of the stores that their input went into."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode

import pytest

from stateline.model.fed_parts import FedPart, FedParts, note_after

TOTALS, SUMS, OUT = FedPart("totals"), FedPart("sums"), FedPart("app-out-repartition", "topic")


def test_a_digest_is_of_the_kind_and_the_name() -> None:
    for part, text in ((TOTALS, b"store totals"), (OUT, b"topic app-out-repartition")):
        assert part.digest == urlsafe_b64encode(hashlib.sha256(text).digest())[:6].decode()


def test_what_left_is_noted_with_its_offset_until_it_is_back() -> None:
    first = note_after(None, None, [TOTALS, OUT])
    assert FedParts.decode(first) == FedParts(frozenset({TOTALS.digest, OUT.digest}))
    second = note_after(FedParts.decode(first), 7, [SUMS])
    assert FedParts.decode(second) == FedParts(frozenset({SUMS.digest}), {TOTALS.digest: 7, OUT.digest: 7})
    third = note_after(FedParts.decode(second), 9, [SUMS])
    assert third == second
    last = note_after(FedParts.decode(third), 9, [TOTALS])
    assert FedParts.decode(last) == FedParts(frozenset({TOTALS.digest}), {OUT.digest: 7, SUMS.digest: 9})


def test_a_topic_that_goes_into_no_store_says_so() -> None:
    assert note_after(None, None, []) == ""
    assert FedParts.decode("") == FedParts()


@pytest.mark.parametrize("text", [None, "short", "abcdef@", "abcdef@-1", "abcdef@x", "abcdef,no", "AgAAAZzz"])
def test_what_nobody_noted_is_no_note(text: str | None) -> None:
    assert FedParts.decode(text) is None


def test_a_note_never_grows_beyond_what_a_broker_takes() -> None:
    many = [FedPart(f"store-{n}") for n in range(400)]
    note = note_after(None, None, many)
    for round_ in range(1, 5):
        note = note_after(FedParts.decode(note), round_, [FedPart(f"store-{n}-{round_}") for n in range(400)])
        assert note is not None
        assert len(note) <= 3_000
    found = FedParts.decode(note)
    assert found is not None
    assert len(found.has_all) == 400
    assert {*found.left.values()} <= {4}, "what left last is likelier to come back"
    assert note_after(None, None, [FedPart(f"store-{n}") for n in range(500)]) is None
