"""How whole epochs are told and cut: the rules, without a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.log import Log
from stateline.log.interface import Record
from stateline.model.pipeline import epochs_topic
from stateline.worker.commit.epochs import Epoch, EpochGate, Epochs, epoch_of
from stateline_store import DamagedDataError, TopicPartition
from support.oracles.whole_epochs import whole_app

OUT, EPOCHS = "app-out", TopicPartition(epochs_topic("app", "sums"), 0)
WRITTEN: dict[str, Any] = {"queryId": "q", "batchId": 3, "endOffsets": [], "rows": 1, "resultTopicIds": {}}


def marker(value: Any, offset: int = 4) -> Record:
    return Record(
        EPOCHS.topic, 0, offset, 1, b"sums", value if isinstance(value, bytes) else json.dumps(value).encode()
    )


def test_a_marker_says_where_its_epoch_ends() -> None:
    found = epoch_of(marker(WRITTEN | {"resultEnds": {"out": {"0": 7, "2": 0}}}))
    assert found == Epoch(5, {TopicPartition("out", 0): 7, TopicPartition("out", 2): 0})
    assert [found.bound(TopicPartition("out", number)) for number in range(3)] == [8, 0, 1]
    assert epoch_of(marker(WRITTEN)).ends is None


@pytest.mark.parametrize(
    "value", [b"no json", [1], {}, WRITTEN | {"resultEnds": 3}, WRITTEN | {"resultEnds": {"out": {"x": 1}}}]
)
def test_what_is_no_marker_is_damage(value: Any) -> None:
    with pytest.raises(DamagedDataError, match="not a pipeline's marker"):
        epoch_of(marker(value))


@given(st.data())
def test_the_target_never_moves_while_some_are_on_their_way_to_it(data: st.DataObject) -> None:
    places = [TopicPartition("out", number) for number in range(3)]
    ends = dict.fromkeys(places, 0)
    epochs, at = Epochs(), dict.fromkeys(places, 0)
    for number in range(1, 20):
        for place in places:
            ends[place] += data.draw(st.integers(0, 3))
        epochs.newest = Epoch(number, {place: end - 1 for place, end in ends.items() if end})
        before, reached = epochs.target, epochs.is_reached(at)
        epochs.move_on(at)
        assert epochs.target == (epochs.newest if reached else before)
        for place in places:
            room = epochs.target.bound(place) - at[place]
            at[place] += data.draw(st.integers(0, room))
        assert epochs.is_reached(at) == all(at[place] == epochs.target.bound(place) for place in places)


def test_a_record_behind_a_compacted_end_shows_that_the_end_was_reached(log: Log) -> None:
    gate = EpochGate(log, whole_app().topology())
    place = TopicPartition(OUT, 0)
    gate._of_topic[OUT].epochs.target = Epoch(1, {place: 100})
    records = [Record(OUT, 0, offset, 1, b"k", b"1") for offset in (95, 105)]
    cut = gate.cut({place: records})
    assert (cut.records, cut.pause, cut.resume) == ({place: records[:1]}, [place], [])
    gate._has_looked = True
    assert not gate.is_reached({place: 90})  # what was let through is still being processed
    assert gate.is_reached({place: 96})
    gate._of_topic[OUT].epochs.target = Epoch(2, {place: 105})
    cut = gate.cut({})
    assert (cut.records, cut.pause, cut.resume) == ({place: records[1:]}, [], [place])
