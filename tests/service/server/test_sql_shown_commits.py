"""When a result holds until the next commit: never if a commit alone does not decide which rows a statement sees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stateline.query.values import CopyStatus, PartitionAnswer, QueryRows
from stateline.server.sql.shown_commits import ShownCommits
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline_store import Position


class Opened:
    """Two partitions that are open, at the same commit, as copies of this kind."""

    def __init__(self, served_by: str = "active") -> None:
        self._served_by: Any = served_by
        self.commit = 5

    def ask(self, *_: object) -> PartitionAnswer:
        return PartitionAnswer(QueryRows(), Position(), CopyStatus(self._served_by, 0, 0, 0))

    def shown(self, store: ServedStore, partition: int) -> Any:
        return store.name, partition, self.commit


def store(*, persistent: bool = True, is_global: bool = False) -> ServedStore:
    definition = SimpleNamespace(persistent=persistent)
    made = SimpleNamespace(name="docs", is_global=is_global, definition=definition, partitions=(0, 1))
    return cast(ServedStore, made)


def commits(partitions: Opened, epochs: tuple[str, ...] = (), *, has_others: bool = False) -> ShownCommits:
    return ShownCommits(cast(Partitions, partitions), epochs, lambda: has_others)


def test_a_result_holds_until_a_partition_shows_another_commit() -> None:
    shown = commits(partitions := Opened())
    read = shown.of([store()])
    assert read is not None
    assert shown.are_newest(read)
    partitions.commit += 1
    assert not shown.are_newest(read)


@pytest.mark.parametrize("given", [{"persistent": False}, {"is_global": True}])
def test_rows_that_change_without_a_commit_that_is_seen_here_are_read_again(given: dict[str, Any]) -> None:
    assert commits(Opened()).of([store()]) is not None
    assert commits(Opened()).of([store(), store(**given)]) is None


def test_a_store_of_whole_epochs_is_read_again() -> None:
    assert commits(Opened(), ("docs",)).of([store()]) is None
    assert commits(Opened(), ("others",)).of([store()]) is not None


@pytest.mark.parametrize("served_by", ["standby", "restoring"])
def test_a_copy_whose_owner_may_be_another_node_is_read_again(served_by: str) -> None:
    assert commits(Opened(served_by), has_others=True).of([store()]) is None
    assert commits(Opened(served_by), has_others=False).of([store()]) is not None
    assert commits(Opened("active"), has_others=True).of([store()]) is not None
