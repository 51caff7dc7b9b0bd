"""Calls one processor's function for each record, or a punctuation's for a time."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.processor import Processor
from stateline.model.store_definition import StoreDefinition
from stateline.processing.failures import FailureHandler
from stateline.processing.processor_context import TaskContext
from stateline.processing.records import InputRecord, OutputRecord
from stateline.processing.unrun import refuse_unrun
from stateline.processing.user_function import UserFunction
from stateline_store import StateStore


class ProcessorRunner:
    """One processor in one task. Used on the worker's thread only."""

    def __init__(
        self,
        processor: Processor,
        stores: Sequence[tuple[StoreDefinition, StateStore]],
        failures: FailureHandler,
        max_record_bytes: int,
        task: TaskContext,
    ) -> None:
        self._function = UserFunction(
            processor.name, processor.function, stores, processor.forwards, failures, max_record_bytes, task
        )

    @property
    def name(self) -> str:
        """The processor's."""
        return self._function.name

    def process(self, record: Record, typed: InputRecord) -> list[OutputRecord]:
        """Call the function for one record; what it forwarded. A failure goes to the policy, its effects undone."""
        called = self._function.call(typed, record.timestamp_ms, record, refuse_unrun)
        return [] if called is None else called[1]

    def punctuate(self, timestamp_ms: int) -> list[OutputRecord]:
        """As `process`, of a function that gets a time."""
        called = self._function.call(timestamp_ms, timestamp_ms, None, refuse_unrun)
        return [] if called is None else called[1]
