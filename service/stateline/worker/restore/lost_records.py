"""Logs which records were deleted before tables, or the group, had read them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stateline.model.restore_start import may_be_markers, start_of_table
from stateline.model.table_topics import beginning_is_lost, forgets, never_read, windows_kept
from stateline.worker.tasks.task import Task
from stateline_store import TopicPartition

logger = logging.getLogger(__name__)

Bounds: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""First offset kept, and the end with open transactions counted: a predecessor's may just be committing."""


def say_lost(tasks: Sequence[Task], bounds: Bounds) -> None:
    """Log which tables lack deleted records that they never read, and which begin without their first records. Tables
    of windows and sessions have no old records anyway."""
    beginnings: dict[str, dict[TopicPartition, int]] = {}
    missed: dict[str, dict[TopicPartition, range]] = {}
    forgetting: set[str] = set()
    for task in tasks:
        for source in task.topology.sources:
            first, end = bounds[source]
            for table in task.topology.subtopology.tables(source.topic):
                offset = task.stores.offsets.committed(table.name)
                if forgets(table):
                    forgetting.add(table.name)
                start = start_of_table(offset, first, end)
                if start.missed:
                    missed.setdefault(table.name, {})[source] = start.missed
                elif first > 0 and (offset is None or start.anew) and not forgets(table):
                    beginnings.setdefault(table.name, {})[source] = first
    for name, firsts in beginnings.items():
        logger.warning("%s", beginning_is_lost(name, firsts))
    for name, ranges in missed.items():
        say_never_read(name, ranges, forgets=name in forgetting)


def say_never_read(table: str, missed: Mapping[TopicPartition, range], *, forgets: bool) -> None:
    """Log that this table keeps its rows although its topic has deleted these offsets before the table read them."""
    if forgets:
        logger.warning("%s", windows_kept(table, missed))
    else:
        level = logging.WARNING if all(map(may_be_markers, missed.values())) else logging.ERROR
        logger.log(level, "%s", never_read(table, missed))


def start_of_group(source: TopicPartition, first: int, end: int, committed: int | None) -> int:
    """Return the group's next offset. If the log does not have it, that is the first record, as for a consumer."""
    if committed is None or first <= committed <= end:
        return first if committed is None else committed
    if committed < first and may_be_markers(range(committed, first)):
        logger.warning("%s begins at offset %d. Its offset %d, which was deleted, was not processed: it was the end of "
                       "a transaction, or a record.", source, first, committed)  # fmt: skip
    elif committed < first:
        logger.warning("Input is lost: %s begins at offset %d, and %d to %d, which were deleted, were never processed.",
                       source, first, committed, first - 1)  # fmt: skip
    else:
        logger.warning("%s ends at offset %d, before the group's offset %d: it is read again from %d.",
                       source, end, committed, first)  # fmt: skip
    return first
