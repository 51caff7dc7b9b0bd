"""Calls an application's function with its declared stores, outputs and context. Undoes its writes if it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stateline.log.interface import Record
from stateline.model.function_checks import takes_context
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.failures import FailureHandler
from stateline.processing.function_results import refuse_unrun
from stateline.processing.processor_context import ProcessorContext, TaskContext
from stateline.processing.records import Output, OutputRecord
from stateline.processing.store_views import AnyView, view_of
from stateline_store import DamagedDataError, RetryLaterError, StateStore, TransactionalStore

T = TypeVar("T")


class UserFunction:
    """One function in one task, on the worker's thread."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        stores: Sequence[tuple[StoreDefinition, StateStore]],
        forwards: Sequence[Topic],
        failures: FailureHandler,
        max_record_bytes: int,
        task: TaskContext,
    ) -> None:
        self.name, self.function = name, function
        given: list[AnyView | StateStore] = [view_of(each, store, max_record_bytes) or store for each, store in stores]
        self._views = [each for each in given if not isinstance(each, StateStore)]
        self._undoable = [store for _, store in stores if isinstance(store, TransactionalStore)]
        self._retaining = [store for each, store in stores if not each.key_value and store in self._undoable]
        self._late_puts = 0
        self._outputs = [Output(topic, max_record_bytes=max_record_bytes) for topic in forwards]
        self._arguments = (*given, *self._outputs)
        self._named = {"context": ProcessorContext(task)} if takes_context(function) else {}
        self._failures = failures

    def forwarded(self, given: object, timestamp_ms: int, record: Record | None) -> list[OutputRecord]:
        """Call the function with a record, or with a time. Returns what it forwarded: nothing if it failed. Otherwise
        as `call`."""
        called = self.call(given, timestamp_ms, record, refuse_unrun)
        return [] if called is None else called[1]

    def call(
        self, given: object, timestamp_ms: int, record: Record | None, take: Callable[[Any], T]
    ) -> tuple[T, list[OutputRecord]] | None:
        """Return what `take` makes of the result, and what the function forwarded. If one of both fails, its writes are
        undone, `record` meets the policy, and None is returned. A punctuation has no `record`.

        Errors of a store's disk are raised: they are not the record's fault. An application's own store keeps what a
        failed record wrote.
        """
        self._start(timestamp_ms, record)
        try:
            result = take(self.function(given, *self._arguments, **self._named))
        except (RetryLaterError, DamagedDataError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code: the policy decides what follows
            for store in self._undoable:
                store.rollback_to_savepoint()
            if record is None:
                self._failures.cannot_punctuate(self.name, timestamp_ms, error)
            else:
                self._failures.cannot_process(record, self.name, error)
            return None
        finally:
            self._count_late_puts()
        return result, [forwarded for output in self._outputs for forwarded in output.take()] if self._outputs else []

    def _count_late_puts(self) -> None:
        if self._retaining:
            late = sum(store.dropped_records for store in self._retaining)
            if late > self._late_puts:
                self._failures.drop_late_puts(late - self._late_puts, self.name)
            self._late_puts = late

    def _start(self, timestamp_ms: int, record: Record | None) -> None:
        if self._failures.undoes_writes:
            for store in self._undoable:
                store.savepoint()
        headers = () if record is None else record.headers
        for view in self._views:
            view.record_starts(timestamp_ms, headers)
        for output in self._outputs:
            output.record_starts(timestamp_ms, headers)
        if record is not None:
            for context in self._named.values():
                context.record_starts(record.timestamp_ms)
