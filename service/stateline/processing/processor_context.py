"""Kafka Streams' `ProcessorContext`, for a function that names it: ``def add_up(order, totals, *, context)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stateline.model.java_names import HintsAtJavaNames
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline_store.task_id import TaskId


@dataclass(slots=True)
class TaskContext:
    """Shared by the functions of one task. `stream_time_ms` is that of the records before the current ones, -1 before
    the first. `commit_requested`: since the last commit. `is_used`: by any function."""

    application_id: str
    task_id: TaskId
    clock: Clock = MACHINE_CLOCK
    stream_time_ms: int = -1
    commit_requested: bool = False
    is_used: bool = False


class ProcessorContext(HintsAtJavaNames):
    """One function's, in one task. Use it on the worker's thread, while the function runs."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "schedule": "declare a function of its own with @app.punctuate(every=…, on=…, stores=[…])"
    }

    def __init__(self, task: TaskContext) -> None:
        task.is_used = True
        self._task = task
        self._stream_time_ms = -1

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self._task.application_id

    @property
    def task_id(self) -> str:
        """The task's id, such as ``0_3``: subtopology and partition."""
        return str(self._task.task_id)

    @property
    def partition(self) -> int:
        """The partition of the task's topics."""
        return self._task.task_id.partition

    def commit(self) -> None:
        """Ask for a commit after the current slice of records, some milliseconds long. The worker commits everything
        that it has processed by then. If micro-batches of a pipeline are read whole, the commit comes with their
        end."""
        self._task.commit_requested = True

    def current_stream_time_ms(self) -> int:
        """Return the largest timestamp of the task's records so far, this one included; -1 before the first.
        Milliseconds since the epoch."""
        return max(self._stream_time_ms, self._task.stream_time_ms)

    def current_system_time_ms(self) -> int:
        """Return the worker's clock, in milliseconds since the epoch. In tests it is the driver's."""
        return self._task.clock.now_ms()

    def record_starts(self, timestamp_ms: int) -> None:
        """Advance stream time. The runtime calls this before each record."""
        self._stream_time_ms = max(self._stream_time_ms, timestamp_ms)
