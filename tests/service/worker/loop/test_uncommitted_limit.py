"""A worker holds its share of `statestore.uncommitted.max.bytes`, and records that stage more than that do no harm."""

from __future__ import annotations

from typing import Any

import pytest

from service.worker.faults import IN, NEVER_MS, Place, Watched, entries
from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.commit.commit_order import Committer
from stateline.worker.tasks.task import Task

_LIMIT = 100_000
_FAN_OUT = 300  # values of a thousand bytes: three times the limit


def fanning_out() -> App:
    """Of each record three hundred values are kept, or, of one whose key begins with "small", one."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))

    @app.process(source, stores=[kept])
    def fan_out(record: InputRecord, kept: StoreView) -> None:
        for n in range(1 if record.key.startswith("small") else _FAN_OUT):
            kept.put(f"{record.key}-{n}", "x" * 1_000)

    return app


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many input offsets each commit covered."""
    commit, seen = Committer.commit, list[int]()

    def counted(committer: Committer, tasks: list[Task], *others: Any) -> None:
        read = [task.processing for task in tasks]
        seen.append(sum(each.next_offsets[IN] - each.committed_next_offsets[IN] for each in read))
        commit(committer, tasks, *others)

    monkeypatch.setattr(Committer, "commit", counted)
    return seen


def reach(worker: Watched, place: Place, sent: list[list[str]]) -> None:
    """Send these keys, each list when the one before was read; then leave, which commits."""
    left = list(sent)
    total = 0

    def next_sent() -> bool:
        nonlocal total
        if worker.read_up_to(IN) < total:
            return False
        if left:
            total += len(left[0])
            place.send(entries(left.pop(0)))
            return False
        return True

    worker.reach(next_sent)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
class TestARecordThatFansOutPastTheLimit:
    def config(self, guarantee: str) -> dict[str, Any]:
        return {
            "processing__guarantee": guarantee,
            "commit__interval__ms": NEVER_MS,
            "statestore__uncommitted__max__bytes": _LIMIT,
        }

    def test_one_is_committed_once_before_the_next_slice(
        self, place: Place, commits: list[int], guarantee: str
    ) -> None:
        app = fanning_out()
        config = place.config(app, **self.config(guarantee))
        reach(place.worker(app, config), place, [["small-a"], ["wide"], ["small-b"]])
        assert commits == [2, 1], "one forced commit, and the one on leaving"
        assert len(place.stores(app, config).rows("kept", 1)) == _FAN_OUT + 2

    def test_two_in_a_row_are_a_commit_each(self, place: Place, commits: list[int], guarantee: str) -> None:
        app = fanning_out()
        config = place.config(app, **self.config(guarantee))
        reach(place.worker(app, config), place, [["wide-1"], ["wide-2"]])
        assert commits == [1, 1]
        assert len(place.stores(app, config).rows("kept", 1)) == 2 * _FAN_OUT

    def test_many_in_one_poll_are_all_processed_once(self, place: Place, commits: list[int], guarantee: str) -> None:
        app = fanning_out()
        config = place.config(app, **self.config(guarantee))
        keys = [f"wide-{n}" for n in range(40)]
        reach(place.worker(app, config), place, [keys])
        assert sum(commits) == 40
        assert 1 < len(commits) <= 40
        assert len(place.stores(app, config).rows("kept", 1)) == 40 * _FAN_OUT


def test_a_worker_of_ten_has_a_tenth_of_the_limit(place: Place, commits: list[int]) -> None:
    app = fanning_out()
    shared: dict[str, Any] = {"num__workers": 10, "statestore__uncommitted__max__bytes": 10 * _LIMIT}
    config = place.config(app, commit__interval__ms=NEVER_MS, **shared)
    reach(place.worker(app, config), place, [["wide-1"], ["small"]])
    assert commits == [1, 1]
