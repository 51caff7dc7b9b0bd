"""Answers queries of the store partitions that this worker has, on the thread that owns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stateline.processes.seldom import seldom
from stateline.query.execution import execute
from stateline.query.kinds import CustomQuery
from stateline.query.open_scans import Pinned
from stateline.query.values import Failure, HostedPartition, Outcome, PartitionAnswer
from stateline.query.wire import WireRequest
from stateline.worker.queries.custom_queries import custom_answer
from stateline_store import IsolationLevel, NotPresentError, Position, StatelineError, StateStore, StoreState

_log = seldom(__name__)

Lookup = Callable[[str, int], HostedPartition | None]
Owned = Callable[[str, int], StateStore | None]
Place: TypeAlias = tuple[str, int, IsolationLevel]
"""A store, a partition of it, and how its rows are seen."""
Standing: TypeAlias = tuple[Position, StoreState] | None
"""How far a place has come, and what its task does; None when a query must find out itself what is wrong."""


class HostedQueries:
    """One worker's. `lookup(store, partition)` says what it has now, or None; `owned` is as `Tasks.owned`."""

    def __init__(self, lookup: Lookup, owned: Owned = lambda store, partition: None) -> None:
        self._lookup, self._owned = lookup, owned

    def run(self, request: WireRequest) -> Outcome:
        """The result, or why there is none. Raises nothing: a query must not end the worker."""
        terms, partition = request.terms, request.partition
        if isinstance(request.query, CustomQuery):
            return custom_answer(request.query, self._owned(terms.store, partition), partition, terms)
        hosted = self._lookup(terms.store, partition)
        if hosted is None or not hosted.store.is_open:
            message = f"Partition {partition} of {terms.store!r} is not on this worker now: ask again in a moment."
            return Failure(NotPresentError(message))
        try:
            reader = hosted.store.reader(terms.isolation_level)
            outcome = execute(
                request.query, reader, hosted.store.stored_schema, partition, terms, hosted.status(),
                has_all_partitions=hosted.has_all_partitions,
            )  # fmt: skip
            if isinstance(outcome, PartitionAnswer):
                outcome.offset = hosted.offset
            return outcome
        except StatelineError as error:
            return Failure(error)
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception; a query must not end the worker
            _log.exception("A query of partition %d of %r failed", partition, terms.store)
            return Failure(StatelineError(f"Reading {terms.store!r} failed: {error}"))

    def pinned(self, request: WireRequest) -> Pinned | None:
        """What a scan that was begun just now keeps of what is staged."""
        hosted = self._lookup(request.terms.store, request.partition)
        if hosted is None or request.terms.isolation_level is IsolationLevel.READ_COMMITTED:
            return None
        return Pinned(hosted.store.staged_version, hosted.store.approximate_num_uncommitted_bytes)

    def is_behind(self, request: WireRequest, position: Position) -> bool:
        """Whether a place of this position does not meet the bound."""
        hosted = self._lookup(request.terms.store, request.partition)
        is_of_all = hosted is not None and hosted.has_all_partitions
        return not request.terms.bound.is_met(position, None if is_of_all else request.partition)

    def standing(self, place: Place) -> Standing:
        """How far this place has come by now."""
        store, partition, level = place
        hosted = self._lookup(store, partition)
        if hosted is None or not hosted.store.is_open:
            return None
        try:
            return hosted.store.position(level), hosted.state
        except StatelineError:
            return None
