"""Whole epochs, the readers' half: an answer over several partitions of a worker is of one micro-batch.

A worker commits an epoch in all of its partitions one after the other, and a secondary follows each by itself. So the
number that the worker keeps in every store (`stateline.deployment.epoch_marker`) is compared: when the partitions of
one owner have different ones, all of them are asked again after the next commit. Partitions of different workers are
not compared: these commit when each has come to the end. One that no worker has is compared with all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from stateline.model.topology import Topology
from stateline.query.values import Failure, Outcome, PartitionAnswer, Terms, answers_of
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, NotReadyError

# Longer than a worker that was killed in the middle of a commit takes to come back and finish it.
_PATIENCE_S = 5.0


class WholeEpochs:
    """Of one server process, for the event loop's thread. `owner` says which worker has a task."""

    def __init__(self, topology: Topology, owner: Callable[[str], str | None], commits: CommitSignal) -> None:
        self._numbers = topology.epoch_numbers()
        self._owner = owner
        self._commits = commits

    async def seen(
        self, store: ServedStore, terms: Terms, look: Callable[[], Awaitable[dict[int, Outcome]]]
    ) -> dict[int, Outcome]:
        """What `look` finds, looked at again until it is whole; failures of all partitions when that takes too long.

        `look` may be called several times; what it has left open is closed then.
        """
        if store.name not in self._numbers or terms.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return await look()
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            commit = self._commits.next_commit()
            outcomes = await look()
            if self._is_whole(store, outcomes):
                return outcomes
            for answer in answers_of(outcomes).values():
                if answer.rows.rest is not None:
                    answer.rows.rest.close()
            if not await self._commits.wait(commit, deadline_s):
                return {partition: Failure(_not_whole(store)) for partition in outcomes}

    def _is_whole(self, store: ServedStore, outcomes: Mapping[int, Outcome]) -> bool:
        seen: dict[str | None, set[tuple[int, ...]]] = {}
        for partition, outcome in outcomes.items():
            if isinstance(outcome, PartitionAnswer):
                seen.setdefault(self._owner(store.placement.task_id(partition)), set()).add(outcome.epochs)
        # What nobody has, anybody may be about to take: a worker that starts tells of its partitions one by one.
        nobodys = seen.pop(None, set())
        return all(len(epochs | nobodys) <= 1 for epochs in seen.values() or [set[tuple[int, ...]]()])


def _not_whole(store: ServedStore) -> NotReadyError:
    return NotReadyError(
        f"The partitions of {store.name!r} are of different micro-batches, and are to be seen whole: the worker has "
        "not finished a commit. Ask again in a moment."
    )
