"""Stores that lack input because they were not part of the application for a while (`model.missed_input`).

Once a task is restored, its stores' Positions say what they have seen. Missing input is read again if only this store
gets it. Otherwise the store is refused, with the command that rebuilds it: its rows would be older than its Position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from stateline.deployment.refused_stores import StoresRefusedError
from stateline.model.missed_input import MissedInput, missed_input, new_feed, refusals
from stateline.model.topology import Topology
from stateline.worker.restore.restore_plan import TaskPlan
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.task_settings import TaskStart
from stateline_store import IsolationLevel, TopicPartition

logger = logging.getLogger(__name__)


def start_with_missed_input(task: Task, plan: TaskPlan, topology: Topology) -> TaskStart:
    """Return where this restored task begins, so that its stores get the input that they lack. Raises
    `StoresRefusedError` for stores that cannot get it."""
    found: list[MissedInput] = []
    dead_letters = task.settings.failures.writes_dead_letters
    for away in plan.away:
        missed, new = missed_input(
            away, task.topology.subtopology, topology, _seen(task, away.source), dead_letters=dead_letters
        )
        found += [] if missed is None else [missed]
        for store in new:
            if task.stores.offsets.committed(store) is not None:  # `new_stores` warns of stores without rows
                logger.warning("%s", new_feed(store, away.source, away.next_offset, topology))
    if reasons := refusals(found, topology):
        raise StoresRefusedError(reasons)
    again = {missed.source: missed.reads_from for missed in found if missed.reads_from is not None}
    for missed in found:
        for told in missed.told():
            logger.warning("%s", told)
    start = plan.restored_start()
    times = {source: at for source, at in start.partition_times.items() if source not in again}
    return replace(start, next_offsets={**start.next_offsets, **again}, partition_times=times)


def _seen(task: Task, source: TopicPartition) -> Callable[[str], int | None]:
    return lambda store: task.stores.position(store, IsolationLevel.READ_COMMITTED).get(*source)
