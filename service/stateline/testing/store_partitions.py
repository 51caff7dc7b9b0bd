"""Queries all partitions of a store that a worker has, with the engine of workers and servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.query import values
from stateline.query.execution import execute
from stateline.query.kinds import descends, is_scan, sort_key
from stateline.query.open_scan import OpenScan
from stateline.query.values import HostedPartition, PartitionAnswer, Terms
from stateline.worker.loop.worker import Worker
from stateline_store import DoesNotExistError, IsolationLevel, Query, StateStore, StoreState, TransactionalStore

_MANY = 10_000  # entries of a scan at a time


@dataclass(frozen=True, slots=True)
class Hosts:
    definition: StoreDefinition
    partitions: Mapping[int, StateStore]

    @classmethod
    def of(cls, worker: Worker, definitions: Mapping[str, StoreDefinition], name: str) -> Hosts:
        """Return this worker's partitions of a store. Raises `DoesNotExistError` for an unknown store."""
        if name not in definitions:
            raise DoesNotExistError(
                f"This application has no store {name!r}; it has {', '.join(sorted(definitions)) or 'none'}."
            )
        if name in worker.global_stores:
            return cls(definitions[name], {0: worker.global_stores[name]})
        tasks = [task for task in worker.tasks.all.values() if name in task.stores.by_name]
        found = {task.id.partition: task.stores.by_name[name] for task in tasks}
        return cls(definitions[name], dict(sorted(found.items())))

    def entries(self, query: Query[Any], level: IsolationLevel) -> list[tuple[Any, Any]]:
        """Return the entries of all partitions, in the order that one has (`stateline.query.values`). Raises as a
        query."""
        terms = Terms(self.definition.name, level, limit=_MANY)
        answers = [_answer(number, store, query, terms) for number, store in self.partitions.items()]
        found = [entry for answer in answers for entry in _all_entries(answer)]
        if len(answers) > 1 and is_scan(query):
            key = sort_key(query, {answer.rows.interval_ms for answer in answers})
            found.sort(key=key or (lambda entry: entry[0]), reverse=descends(query))
        return found


def _answer(number: int, store: StateStore, query: Query[Any], terms: Terms) -> PartitionAnswer:
    assert isinstance(store, TransactionalStore), "who reads one of another kind takes of_partition"
    hosted = HostedPartition(store, StoreState.ACTIVE)
    reader = store.reader(terms.isolation_level)
    answer = execute(query, reader, store.stored_schema, number, terms, hosted.status())
    if isinstance(answer, values.Failure):
        raise answer.error
    return answer


def _all_entries(answer: PartitionAnswer) -> Iterator[tuple[Any, Any]]:
    rows = answer.rows
    yield from rows.entries
    while isinstance(rest := rows.rest, OpenScan):
        rows = rest.rows(_MANY)
        yield from rows.entries
