"""Choose the node whose copy of a partition is asked.

First comes a copy here that may answer (`copies`). Then comes the owner's node, by the nodes' maps. If the request
accepts standbys, other nodes with copies follow, the furthest copy first. The asked node checks whether it may answer,
so an outdated map costs only a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stateline.query.values import Failure, Outcome, PartitionAnswer, Terms, answers_of
from stateline.server.guard.passing_on import token_to_pass_on
from stateline.server.nodes.link import Link
from stateline.server.nodes.nodes import Nodes
from stateline.server.routing.copies import Copies
from stateline.server.state.epochs import close_rests
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import (
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    Query,
    StatelineError,
)

# Failures of one copy that another one may not have.
_OF_A_COPY = (NotActiveError, NotPresentError, NotReadyError, NotUpToBoundError)
# The first of these explains best why no node answered.
_TELLING = (NotUpToBoundError, NotActiveError, NotReadyError, NotPresentError)
_MOST_ASKED = 3  # of nodes, for one partition of one request


@dataclass(eq=False, repr=False)
class ClusterCopies:
    """One per server process, for the event loop's thread. `why_ownerless` returns why no node owns a task."""

    _copies: Copies
    _ownership: Ownership
    _nodes: Nodes
    _why_ownerless: Callable[[str], str]
    _limits: TimeLimits

    async def ask(
        self, store: ServedStore, terms: Terms, queries: Mapping[int, Query[Any]], deadline_s: float | None
    ) -> dict[int, Outcome]:
        """Ask each partition's owner, here or at another node, or a copy here if it may answer. The asked copy may
        wait for a bound until the deadline."""
        if store.is_global:  # each node has its own copy
            outcomes = await self._copies.ask(store, terms, queries, deadline_s)
            for answer in answers_of(outcomes).values():
                answer.node = self._nodes.shown
            return outcomes
        away = {p for p in queries if self._is_away(store, terms, p)}
        here = {p: query for p, query in queries.items() if p not in away}
        outcomes = await self._copies.ask(store, terms, here, deadline_s) if here else {}
        for p, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                if isinstance(outcome.error, _OF_A_COPY) and not self._ownership.is_active(store.placement.task_id(p)):
                    away.add(p)
            else:
                outcome.node = self._nodes.shown
        if not away:
            return outcomes
        answers = await asyncio.gather(
            *(self._elsewhere(store, terms, p, queries[p], deadline_s, outcomes.get(p)) for p in away)
        )
        return outcomes | dict(zip(away, answers, strict=True))

    async def look_for_owners(self, store: ServedStore, terms: Terms, partitions: Iterable[int]) -> None:
        """Find the workers of this node that are to answer. Partitions of other nodes are left out."""
        here = [p for p in partitions if self._nodes.owner(store.placement.task_id(p)) is None]
        await self._copies.look_for_owners(store, terms, here)

    async def ends(self, store: ServedStore, partitions: Collection[int]) -> dict[int, int]:
        """Return the ends of partitions owned here, and ask other owners for theirs (`CopyRouter.ends`)."""
        owners = self._owners(store, partitions)
        here = self._copies.ends(store, [p for p in partitions if p not in owners])
        asked: dict[Link, list[int]] = {}
        for p, link in owners.items():
            asked.setdefault(link, []).append(p)
        found = await asyncio.gather(here, *(_ends_of(link, store.name, some) for link, some in asked.items()))
        return {p: end for each in found for p, end in each.items()}

    def announce_commits(self, store: ServedStore, partitions: Iterable[int]) -> None:
        """Ask the owners' nodes to announce their next commit here."""
        for link in set(self._owners(store, partitions).values()):
            link.wake()

    def _owners(self, store: ServedStore, partitions: Iterable[int]) -> dict[int, Link]:
        """Return the links to the owners of partitions that are not owned here, if another node claims to own them."""
        tasks = {p: store.placement.task_id(p) for p in partitions}
        found = {p: self._nodes.owner(task) for p, task in tasks.items() if not self._ownership.is_owned(task)}
        return {p: link for p, link in found.items() if link is not None}

    def explained(self, store: ServedStore, partition: int, terms: Terms, outcome: Outcome) -> Outcome:
        """Return the outcome. A failure gets the owner's URL, because the client may reach the owner, or the reason why
        there is no owner."""
        found = self._copies.explained(store, partition, terms, outcome)
        if not isinstance(found, Failure):
            return found
        task_id = store.placement.task_id(partition)
        if (owner := self._nodes.owner(task_id)) is not None:
            return Failure(found.error, found.position, owner.hello.url or None)
        if self._ownership.is_owned(task_id):
            return found
        why = self._why_ownerless(task_id) if isinstance(found.error, NotActiveError | NotPresentError) else ""
        error = type(found.error)(f"{found.error} {why}") if why else found.error
        return Failure(
            error, found.position, self._nodes.last_owner_url(task_id) if self._nodes.others else found.owner
        )

    def owner_elsewhere(self, store: ServedStore, partition: int) -> Link | None:
        """Return the link to the node that owns this partition. None if this node owns it, or the owner is unknown."""
        if not self._nodes.others:
            return None
        task_id = store.placement.task_id(partition)
        owner = self._nodes.owner(task_id)
        return None if owner is None or self._ownership.is_owned(task_id) else owner

    def _is_away(self, store: ServedStore, terms: Terms, partition: int) -> bool:
        """Whether the copy here need not be asked first."""
        return self.owner_elsewhere(store, partition) is not None and not takes_standbys(terms, partition)

    async def _elsewhere(
        self,
        store: ServedStore,
        terms: Terms,
        partition: int,
        query: Query[Any],
        deadline_s: float | None,
        here: Outcome | None,
    ) -> Outcome:
        """Return another node's answer. `here` is the answer of the copy here, if it was asked."""
        failures: list[Failure] = []
        task_id = store.placement.task_id(partition)
        for link in self._nodes.holders(task_id, store.name, partition)[:_MOST_ASKED]:
            outcome = await self._asked(link, store, terms, partition, query, deadline_s)
            if not isinstance(outcome, Failure) and not takes_standbys(terms, partition):
                outcome = self._unless_foreign(task_id, link, outcome, store.name, partition)
            if not isinstance(outcome, Failure) or not isinstance(outcome.error, _OF_A_COPY):
                return outcome
            failures.append(outcome)
        if here is None:
            here = (await self._copies.ask(store, terms, {partition: query}, deadline_s))[partition]
        if not isinstance(here, Failure):
            here.node = self._nodes.shown
            return here
        return min([here, *failures], key=lambda failure: _place(failure.error))

    def _unless_foreign(
        self, task_id: str, link: Link, answer: PartitionAnswer, store: str, partition: int
    ) -> PartitionAnswer | Failure:
        """Return the answer if this node may have the newest copy; else a failure."""
        if link is self._nodes.owner(task_id) or self._nodes.may_answer(task_id, link, answer.copy.served_by):
            return answer
        close_rests({partition: answer})
        return Failure(
            NotActiveError(
                f"Partition {partition} of {store!r} is answered by node {link.hello.node!r}, and Kafka's group has "
                "not given it to that node. Ask again in a moment."
            )
        )

    async def _asked(
        self,
        link: Link,
        store: ServedStore,
        terms: Terms,
        partition: int,
        query: Query[Any],
        deadline_s: float | None,
    ) -> Outcome:
        left_s = 0.0 if deadline_s is None else max(0.0, deadline_s - asyncio.get_running_loop().time())
        # A stop of this server ends a wait there. The link limits the time of an answer.
        within = self._limits.within(math.inf) if left_s else contextlib.nullcontext()
        try:
            async with within:
                wait_ms, timestamped = int(left_s * 1000), store.definition.timestamped
                outcome = await link.query(
                    terms, partition, query, wait_ms, token_to_pass_on(), timestamped=timestamped
                )
        except StatelineError as error:
            return Failure(error)
        if not isinstance(outcome, Failure):
            outcome.node = link.hello.node
        return outcome


async def _ends_of(link: Link, store: str, partitions: Collection[int]) -> dict[int, int]:
    try:
        return await link.ends(store, partitions)
    except StatelineError:
        return {}  # unknown now; the feed looks again


def takes_standbys(terms: Terms, partition: int) -> bool:
    """Whether this request may accept a copy that is not the owner's."""
    if terms.require_active or terms.isolation_level is IsolationLevel.READ_UNCOMMITTED:
        return False
    bounded = any(partition in offsets for offsets in terms.bound.position.offsets.values())
    return terms.max_staleness_ms is not None or bounded


def _place(error: StatelineError) -> int:
    return next((at for at, kind in enumerate(_TELLING) if isinstance(error, kind)), -1)
