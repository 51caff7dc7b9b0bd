"""Whole epochs, the readers' half: an answer over several partitions of a worker is of one micro-batch.

A worker commits an epoch in one partition after the other, and each secondary follows one partition. So readers compare
the epoch's number in every store (`deployment.pipelines.epoch_marker`). If the partitions of one owner differ, all of
them are read again after the next commit. Partitions of different workers of one node are not compared, because these
workers commit independently. A partition without a worker is compared with all others. So are partitions of several
nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from stateline.model.topology import Topology
from stateline.query.values import Failure, Outcome, Terms, answers_of
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.served_stores import ServedStore
from stateline_store import IsolationLevel, NotReadyError

# Longer than a worker that was killed in the middle of a commit takes to come back and finish it.
_PATIENCE_S = 5.0


class WholeEpochs:
    """One per server process, for the event loop's thread."""

    def __init__(self, topology: Topology, commits: CommitSignal, announce: Callable[[ServedStore], None]) -> None:
        """`announce` has the next commit of this store's partitions announced, wherever they are."""
        self._numbers = topology.epoch_numbers()
        self._commits = commits
        self._announce = announce

    def patience_s(self, store: ServedStore, terms: Terms) -> float:
        """How long `seen` waits at most; 0 if the partitions may be of different epochs."""
        return _PATIENCE_S if self._concerns(store, terms) else 0.0

    async def seen_at_once(
        self, store: ServedStore, terms: Terms, look: Callable[[], Awaitable[dict[int, Outcome]]]
    ) -> dict[int, Outcome]:
        """Return the outcomes of one look; failures of all partitions if their epochs differ."""
        outcomes = await look()
        if not self._concerns(store, terms) or _is_whole(outcomes):
            return outcomes
        close_rests(outcomes)
        return dict.fromkeys(outcomes, Failure(_not_whole(store)))

    async def seen(
        self, store: ServedStore, terms: Terms, look: Callable[[], Awaitable[dict[int, Outcome]]]
    ) -> dict[int, Outcome]:
        """Return the result of `look`, repeated until it is whole; failures of all partitions if that takes too long.

        `look` may be called several times; what it has left open is closed then.
        """
        if not self._concerns(store, terms):
            return await look()
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        commit: asyncio.Event | None = None
        while not _is_whole(outcomes := await look()):
            close_rests(outcomes)
            # After the first look there is another one at once: what was committed before `announce` is not announced.
            if commit is not None and not await self._commits.wait(commit, deadline_s):
                return {partition: Failure(_not_whole(store)) for partition in outcomes}
            commit = self._commits.next_commit()
            self._announce(store)
        return outcomes

    def _concerns(self, store: ServedStore, terms: Terms) -> bool:
        return store.name in self._numbers and terms.isolation_level is not IsolationLevel.READ_UNCOMMITTED


def close_rests(outcomes: Mapping[int, Outcome]) -> None:
    """Release the states that these answers have left open."""
    for answer in answers_of(outcomes).values():
        if answer.rows.rest is not None:
            answer.rows.rest.close()


def _is_whole(outcomes: Mapping[int, Outcome]) -> bool:
    if len({answer.node for answer in answers_of(outcomes).values()}) > 1:
        return len({answer.epochs for answer in answers_of(outcomes).values()}) <= 1
    seen: dict[tuple[str | None, str] | None, set[tuple[int, ...]]] = {}
    for answer in answers_of(outcomes).values():
        worker = None if answer.worker is None else (answer.node, answer.worker)
        seen.setdefault(worker, set()).add(answer.epochs)
    # What nobody has, anybody may be about to take: a worker that starts tells of its partitions one by one.
    nobodys = seen.pop(None, set())
    return all(len(epochs | nobodys) <= 1 for epochs in seen.values() or [set[tuple[int, ...]]()])


def _not_whole(store: ServedStore) -> NotReadyError:
    return NotReadyError(
        f"The partitions of {store.name!r} are of different micro-batches, and are to be seen whole: a worker has "
        "not finished a commit, or those of several nodes are not at the same one. Ask again in a moment."
    )
