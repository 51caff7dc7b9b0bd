"""A worker's part of a snapshot: what it makes, at which commit, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes
from stateline.dsl.app import App
from stateline.query.values import HostedPartition
from stateline.stores import key_value
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import (
    InvalidArgumentError,
    NotActiveError,
    NotPresentError,
    Position,
    StateDirectory,
    StoreContext,
    StoreState,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.scan import EVERY_KEY
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart


class Place:
    """Two stores of two tasks and one in memory, owned by the test, as a worker hosts them."""

    def __init__(self, root: Path) -> None:
        app = App("app")
        topic = app.topic("in", key=serdes.string, value=serdes.string)
        app.table(topic, store="table")
        app.table(topic, store="cache", persistent=False)
        counts = app.store(key_value("counts", key=serdes.string, value=serdes.string))

        @app.process(topic, stores=[counts])
        def count(record: Any, counts: Any) -> None: ...

        self.directory = StateDirectory(root, "app")
        topology = app.topology()
        self.hosted: dict[tuple[str, int], HostedPartition] = {}
        for name, definition in topology.stores.items():
            for partition in range(2):
                task_id = str(topology.subtopology_of(name).task_id(partition))
                store = definition.build()
                assert isinstance(store, TransactionalStore)
                store.init(StoreContext(task_id, self.directory.task(task_id)))
                self.hosted[name, partition] = HostedPartition(store, StoreState.ACTIVE)
        self.maker = SnapshotMaker(self.directory, topology, lambda name, partition: self.hosted.get((name, partition)))
        self.snapshot = self.directory.application / "snapshots" / "made"
        self.snapshot.mkdir(parents=True)

    def put(self, offset: int) -> None:
        """One record in every partition of every store, not committed."""
        for (name, partition), hosted in self.hosted.items():
            store: Any = hosted.store
            if name == "counts":
                store.put(b"key", b"%d" % offset)
            else:
                store.put_with_timestamp(b"key", b"%d" % offset, offset)
            store.advance(Position.of({TopicPartition("in", partition): offset}))

    def commit(self) -> None:
        for hosted in self.hosted.values():
            hosted.store.commit({})

    def close(self) -> None:
        for hosted in self.hosted.values():
            hosted.store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


PLACES = [["table", 0], ["table", 1], ["counts", 0], ["counts", 1]]


def values(place: Place, part: CheckpointPart) -> dict[bytes, bytes]:
    with Checkpoint(place.snapshot, part) as checkpoint, checkpoint.scan(EVERY_KEY) as rows:
        return {key: value[8:] if part.store == "table" else value for key, value in rows}


def test_all_that_was_asked_for_is_at_the_newest_commit_and_nothing_staged_shows(place: Place) -> None:
    place.put(1)
    place.commit()
    place.put(2)
    reply = place.maker.answer({"snapshot": "made", "places": PLACES})
    place.commit()
    parts = [CheckpointPart.from_json(part) for part in reply["parts"]]
    assert [[part.store, part.partition] for part in parts] == PLACES
    for part in parts:
        assert values(place, part) == {b"key": b"1"}
        assert part.position == Position.of({TopicPartition("in", part.partition): 1})
        assert part.commit == 1


@pytest.mark.parametrize(
    ("places", "error", "says"),
    [
        ([("table", 2)], NotPresentError, "not on this worker"),
        ([("table", 0), ("cache", 0)], InvalidArgumentError, "in memory"),
    ],
)
def test_what_it_does_not_have_on_disk_is_refused(
    place: Place, places: list[tuple[str, int]], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        place.maker.make("made", places)


def test_a_partition_that_restores_is_refused(place: Place) -> None:
    """Its rows can be ahead of its Position until it is through."""
    place.hosted["table", 1] = HostedPartition(place.hosted["table", 1].store, StoreState.RESTORING)
    with pytest.raises(NotActiveError, match="restored"):
        place.maker.make("made", [("table", 0), ("table", 1)])


def test_plain_files_beside_timestamped_ones_are_refused(place: Place) -> None:
    plain = place.directory.store("0_0", "table", timestamped=False)
    plain.mkdir(parents=True)
    (plain / "CURRENT").touch()
    with pytest.raises(NotActiveError, match="upgraded"):
        place.maker.make("made", [("table", 0)])


def test_a_snapshot_that_was_given_up_meanwhile_is_not_made_anew(place: Place) -> None:
    with pytest.raises(NotPresentError, match="given up"):
        place.maker.make("gone", [("table", 0)])
    assert not (place.directory.application / "snapshots" / "gone").exists()


@pytest.mark.parametrize("message", [{}, {"snapshot": "made"}, {"snapshot": "made", "places": [["table"]]}])
def test_a_message_that_makes_no_sense_is_answered(place: Place, message: dict[str, Any]) -> None:
    assert "Not a snapshot" in place.maker.answer(message)["error"]


def test_a_refusal_keeps_its_meaning_on_the_other_side(place: Place) -> None:
    reply = place.maker.answer({"snapshot": "made", "places": [["table", 7]]})
    assert reply["outcome"]["error"] == "NotPresentError"
