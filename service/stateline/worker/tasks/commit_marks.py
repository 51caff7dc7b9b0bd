"""Writes beside a commit's rows: headers into changelogs, and offsets and numbers into stores.

| where                              | what                                                                      |
|------------------------------------|---------------------------------------------------------------------------|
| every record of a changelog        | at least once, the owner's epoch: where the changelog ended when the task |
|                                    | was taken over (`processing.changelog`)                                   |
| the last record of a commit        | the store's Position, and its types                                       |
| each store, with its rows          | the offset of its changelog that it has, the owner's epoch, and the       |
|                                    | numbers of whole epochs (`worker.commit.epochs`)                          |

`worker.commit.commit_order` has the order in which all of it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from stateline.deployment.pipelines.epoch_marker import LOADING
from stateline.log.interface import Headers
from stateline.processing.changelog import OWNER_EPOCH, owner_headers, position_headers, types_headers
from stateline.worker.tasks.task_settings import TaskTopology
from stateline.worker.tasks.task_stores import TaskStores
from stateline_store import IsolationLevel, TopicPartition, TransactionalStore

EpochNumbers: TypeAlias = Mapping[TopicPartition, int]
"""Partition 0 of a markers' topic → the number of an epoch, as stores keep it."""

NO_EPOCHS: EpochNumbers = MappingProxyType({})


class CommitMarks:
    def __init__(
        self,
        topology: TaskTopology,
        stores: TaskStores,
        epoch_numbers: Mapping[str, tuple[TopicPartition, ...]],
        *,
        exactly_once: bool,
    ) -> None:
        self._topology = topology
        self._stores = stores
        self._exactly_once = exactly_once
        self._epoch_places = {name: epoch_numbers.get(name, ()) for name in topology.definitions}
        self._owner_epochs: dict[str, int] = {}  # by store, at least once
        # The least and the largest end of a changelog after this task's commit: a transaction's marker may follow.
        self._left_at: dict[TopicPartition, tuple[int, int]] = {}
        # The declaration of a store of a user's own kind need not say what it writes.
        self._types_headers = {  # by store, made once: each commit writes them
            name: types_headers(topology.definitions[name].types)
            for _, name in topology.logged
            if isinstance(stores.by_name[name], TransactionalStore)
        }

    def take_over(self, ends: Mapping[TopicPartition, int]) -> None:
        """This task writes to its changelogs, which end at `ends`, from now on. Earlier writers are former owners."""
        self._left_at = {log: (ends[log], ends[log]) for log, _ in self._topology.logged if log in ends}
        for changelog, name in () if self._exactly_once else self._topology.logged:
            # A store of a user's own kind may forget owner epochs.
            if changelog in ends and isinstance(self._stores.by_name[name], TransactionalStore):
                self._owner_epochs[name] = ends[changelog]

    def wrote(self, written: Mapping[TopicPartition, int]) -> None:
        marker = 1 if self._exactly_once else 0
        for changelog in self._left_at.keys() & written.keys():
            self._left_at[changelog] = written[changelog] + 1, written[changelog] + 1 + marker

    def are_newest(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether nobody has written to the changelogs since this task did. `ends` counts open transactions."""
        return all(least <= ends[changelog] <= most for changelog, (least, most) in self._left_at.items())

    def record_headers(self, store: str) -> Headers:
        return owner_headers(self._owner_epochs[store]) if store in self._owner_epochs else ()

    def last_record_headers(self, store: str) -> Headers:
        position = self._stores.position(store, IsolationLevel.READ_UNCOMMITTED)
        return (*position_headers(position), *self._types_headers.get(store, ()))

    def changelog_offset(
        self, store: str, written: Mapping[TopicPartition, int], next_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the changelog offset of a store's commit. For a table that is the last input record's. `written` has
        the last offset of each changelog in this commit."""
        changelog = self._topology.changelogs.get(store)
        if changelog is None:
            return {}
        if changelog in next_offsets:
            # A table that is ahead of the input, because the group's offsets were lost, keeps its offset.
            reached = max(next_offsets[changelog] - 1, self._stores.offsets.committed(store) or 0)
            return {changelog: reached} if next_offsets[changelog] > 0 else {}
        if changelog not in written:
            return {}
        owner = {OWNER_EPOCH: self._owner_epochs[store]} if store in self._owner_epochs else {}
        return {changelog: written[changelog]} | owner

    def epoch_numbers(self, store: str, epochs: EpochNumbers) -> dict[TopicPartition, int]:
        return {place: epochs.get(place, LOADING) for place in self._epoch_places[store]}

    def is_loading(self) -> bool:
        """Return whether a store is in no whole epoch, so that nobody reads it."""
        return any(number == LOADING for _, number in self._committed_numbers())

    def is_in_step(self, epochs: EpochNumbers) -> bool:
        return all(epochs[place] == number for place, number in self._committed_numbers())

    def _committed_numbers(self) -> Iterator[tuple[TopicPartition, int]]:
        for name, places in self._epoch_places.items():
            store = self._stores.by_name[name]
            if isinstance(store, TransactionalStore) and store.persistent:
                for place in places:
                    number = store.committed_offset(place)
                    yield place, LOADING if number is None else number
