"""Queries of an application's own, answered by the store's method `query`, on the thread that owns it."""

from __future__ import annotations

from typing import Any

import orjson

from stateline.processes.seldom import seldom
from stateline.query.kinds import CustomQuery
from stateline.query.values import MAX_RESULT_BYTES, CopyStatus, Failure, Outcome, PartitionAnswer, QueryRows, Terms
from stateline.serde.plain import JsonSerde
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    NotPresentError,
    NotUpToBoundError,
    Position,
    StatelineError,
    StateStore,
    TransactionalStore,
    UnknownQueryTypeError,
)

_log = seldom(__name__)


def custom_answer(query: CustomQuery, store: StateStore | None, partition: int, terms: Terms) -> Outcome:
    """What the store of this partition answers, None being no store that is this worker's; or why it does not. Raises
    nothing: a query must not end the worker."""
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
