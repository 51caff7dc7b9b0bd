"""Calls one processor's function for each record, and undoes its writes when it fails and the worker goes on."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.processor import Processor
from stateline.model.store_definition import StoreDefinition
from stateline.processing.failures import FailureHandler
from stateline.processing.records import InputRecord, Output, OutputRecord
from stateline.processing.store_views import AnyView, view_of
from stateline.processing.unrun import refuse_unrun
from stateline_store import DamagedDataError, RetryLaterError, StateStore, TransactionalStore


class ProcessorRunner:
    """One processor in one task. Used on the worker's thread only."""

    def __init__(
        self,
        processor: Processor,
        stores: Sequence[tuple[StoreDefinition, StateStore]],
        failures: FailureHandler,
        max_record_bytes: int,
    ) -> None:
        self._processor = processor
        arguments: list[AnyView | StateStore] = [
            view_of(each, store, max_record_bytes) or store for each, store in stores
        ]
        self._views = [each for each in arguments if not isinstance(each, StateStore)]
        self._undoable = [store for _, store in stores if isinstance(store, TransactionalStore)]
        self._outputs = [Output(topic, max_record_bytes=max_record_bytes) for topic in processor.forwards]
        self._function, self._given = processor.function, (*arguments, *self._outputs)
        self._failures = failures

    @property
    def name(self) -> str:
        """The processor's."""
        return self._processor.name

    def process(self, record: Record, typed: InputRecord) -> list[OutputRecord]:
        """Call the function for one record; what it forwarded. A failure goes to the policy, its effects undone."""
        return self._call(typed, record.timestamp_ms, record)

    def punctuate(self, timestamp_ms: int) -> list[OutputRecord]:
        """As `process`, of a function that gets a time."""
        return self._call(timestamp_ms, timestamp_ms, None)

    def _call(self, given: InputRecord | int, timestamp_ms: int, record: Record | None) -> list[OutputRecord]:
        """What the function forwarded; if it raises and the policy goes on, its writes are undone.

        What a store could not do, because of its disk, is not the record's fault and passes through. A store of the
        user's own is given to the function as it is, and keeps what a failed record wrote.
        """
        if self._failures.undoes_writes:
            for store in self._undoable:
                store.savepoint()
        for view in self._views:
            view.record_starts(timestamp_ms)
        for output in self._outputs:
            output.record_starts(timestamp_ms)
        try:
            refuse_unrun(self._function(given, *self._given))
        except (RetryLaterError, DamagedDataError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: the policy decides what follows
            for store in self._undoable:
                store.rollback_to_savepoint()
            if record is None:
                self._failures.cannot_punctuate(self.name, timestamp_ms, error)
            else:
                self._failures.cannot_process(record, self.name, error)
            return []
        return [forwarded for output in self._outputs for forwarded in output.take()] if self._outputs else []
