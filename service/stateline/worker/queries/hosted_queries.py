"""Answers queries of the store partitions that this worker has, on the thread that owns them.

An application's own queries are answered by the store's method `query`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import orjson

from stateline.processes.seldom import seldom
from stateline.query.execution import execute
from stateline.query.kinds import CustomQuery
from stateline.query.open_scans import Pinned
from stateline.query.values import (
    MAX_RESULT_BYTES,
    CopyStatus,
    Failure,
    HostedPartition,
    Outcome,
    PartitionAnswer,
    QueryRows,
    Terms,
)
from stateline.query.wire import WireRequest
from stateline.serde.plain import JsonSerde
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    NotPresentError,
    NotUpToBoundError,
    Position,
    StatelineError,
    StateStore,
    StoreState,
    TransactionalStore,
    UnknownQueryTypeError,
)

_log = seldom(__name__)

Lookup = Callable[[str, int], HostedPartition | None]
Owned = Callable[[str, int], StateStore | None]
Place: TypeAlias = tuple[str, int, IsolationLevel]
"""A store, a partition of it, and how its rows are seen."""
Standing: TypeAlias = tuple[Position, StoreState] | None
"""A place's Position, and what its task does. None if a query must find out itself why there is no answer."""


class HostedQueries:
    """One worker's. `lookup(store, partition)` returns the partition that it has now, or None. `owned`: see
    `Tasks.owned`. `by_clock`: see `StoreSchema.read_by_clock`."""

    def __init__(self, lookup: Lookup, owned: Owned = lambda store, partition: None, *, by_clock: bool = False) -> None:
        self._lookup, self._owned, self._by_clock = lookup, owned, by_clock

    def run(self, request: WireRequest) -> Outcome:
        """Return the result, or why there is none. Raises nothing: a query must not end the worker."""
        terms, partition = request.terms, request.partition
        if isinstance(request.query, CustomQuery):
            return _custom_answer(request.query, self._owned(terms.store, partition), partition, terms)
        hosted = self._lookup(terms.store, partition)
        if hosted is None or not hosted.store.is_open:
            message = f"Partition {partition} of {terms.store!r} is not on this worker now: ask again in a moment."
            return Failure(NotPresentError(message))
        try:
            reader = hosted.store.reader(terms.isolation_level)
            schema = hosted.store.stored_schema
            schema = schema.read_by_clock() if self._by_clock else schema
            outcome = execute(
                request.query, reader, schema, partition, terms, hosted.status(),
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
        """Return how much staged data a new scan keeps."""
        hosted = self._lookup(request.terms.store, request.partition)
        if hosted is None or request.terms.isolation_level is IsolationLevel.READ_COMMITTED:
            return None
        return Pinned(hosted.store.staged_version, hosted.store.approximate_num_uncommitted_bytes)

    def is_behind(self, request: WireRequest, position: Position) -> bool:
        hosted = self._lookup(request.terms.store, request.partition)
        is_of_all = hosted is not None and hosted.has_all_partitions
        return not request.terms.bound.is_met(position, None if is_of_all else request.partition)

    def standing(self, place: Place) -> Standing:
        store, partition, level = place
        hosted = self._lookup(store, partition)
        if hosted is None or not hosted.store.is_open:
            return None
        try:
            return hosted.store.position(level), hosted.state
        except StatelineError:
            return None


def _custom_answer(query: CustomQuery, store: StateStore | None, partition: int, terms: Terms) -> Outcome:
    """Return the answer of the application's store, or why there is none. `store` is None if this worker does not own
    it."""
    if store is None:
        message = f"Partition {partition} of {terms.store!r} is not active on this worker now: ask again in a moment."
        return Failure(NotPresentError(message))
    try:
        position = _checked_position(store, partition, terms)
        found = _json(store.query(orjson.loads(query.query), terms.isolation_level), terms)
        if len(found) > MAX_RESULT_BYTES:
            raise InvalidArgumentError(
                f"The answer has {len(found)} bytes, and {MAX_RESULT_BYTES} at most are passed on."
            )
        return PartitionAnswer(QueryRows([(b"", found)]), position, _status(store))
    except StatelineError as error:
        return Failure(error)
    except Exception as error:  # noqa: BLE001 - the application's code
        _log.exception("A custom query of partition %d of %r failed", partition, terms.store)
        return Failure(StatelineError(f"`query` of store {terms.store!r} has raised {type(error).__name__}."))


def _json(answer: Any, terms: Terms) -> bytes:
    try:
        return JsonSerde().serialize(answer)
    except InvalidArgumentError as error:  # the mistake is not the caller's
        raise StatelineError(f"`query` of store {terms.store!r} has returned what is no JSON: {error}") from error


def _checked_position(store: StateStore, partition: int, terms: Terms) -> Position:
    if terms.isolation_level is IsolationLevel.READ_COMMITTED and not store.transactional:
        raise UnknownQueryTypeError(
            f"{terms.store!r} is not transactional, and does not know what is committed: ask with "
            "isolation_level=read_uncommitted."
        )
    if not isinstance(store, TransactionalStore):
        if not terms.bound.is_unbounded():
            raise InvalidArgumentError(f"{terms.store!r} does not say its position: leave out position_bound.")
        return Position()
    position = store.position(terms.isolation_level)
    if not terms.bound.is_met(position, partition):
        raise NotUpToBoundError(
            f"Partition {partition} of {terms.store!r} is still behind position_bound: wait longer (wait_ms), or ask "
            "again."
        )
    return position


def _status(store: StateStore) -> CopyStatus:
    records, committed_at_ms = 0, 0
    if isinstance(store, TransactionalStore):
        records, committed_at_ms = store.staged_records, store.committed_at_ms
    return CopyStatus("active", records, store.approximate_num_uncommitted_bytes, committed_at_ms)
