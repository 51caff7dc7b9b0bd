"""Calls one processor's function for each record, and undoes its writes when it fails and the worker goes on."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.stores import StoreView
from stateline.topology import Processor, StoreDefinition
from stateline.worker.failures import FailureHandler
from stateline.worker.records import InputRecord, Output, OutputRecord
from stateline_store import KeyValueStore


class ProcessorRunner:
    """One processor in one task. Used on the worker's thread only."""

    def __init__(
        self,
        processor: Processor,
        stores: Sequence[tuple[StoreDefinition, KeyValueStore]],
        failures: FailureHandler,
        max_record_bytes: int,
    ) -> None:
        self._processor = processor
        self._views = [StoreView(each, store, max_record_bytes=max_record_bytes) for each, store in stores]
        self._outputs = [Output(topic, max_record_bytes=max_record_bytes) for topic in processor.forwards]
        self._failures = failures

    def process(self, record: Record, typed: InputRecord) -> list[OutputRecord]:
        """Call the function for one record; what it forwarded. A failure goes to the policy, its effects undone."""
        if not self._call(record, typed):
            return []
        return [forwarded for output in self._outputs for forwarded in output.take()]

    def _call(self, record: Record, typed: InputRecord) -> bool:
        """Whether the function returned; if it raised and the policy goes on, its writes are undone."""
        undo = self._failures.undoes_writes
        for view in self._views:
            view.record_starts(record.timestamp_ms, undo=undo)
        for output in self._outputs:
            output.record_starts(record.timestamp_ms)
        try:
            self._processor.function(typed, *self._views, *self._outputs)
        except Exception as error:  # noqa: BLE001 - it is the user's code: the policy decides what follows
            for view in self._views:
                view.undo()
            self._failures.cannot_process(record, self._processor.name, error)
            return False
        return True
