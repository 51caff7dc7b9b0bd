"""Calls an application's processors for records, and its punctuations as time goes by (Kafka Streams' punctuation).

A punctuation is due at multiples of its interval: of stream time, which is the largest timestamp of the task's records
so far, or of the clock since the task began to run. A due punctuation is called once, however much time has passed.
By stream time the first call comes at the task's first record. Each later call comes right after the record that makes
it due.

The first transactional store of a punctuation keeps the time of its last call. After a restart the calls go on from
there. After a crash between the log's commit and the store's, the call for the same time is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.processor import Processor, Punctuation
from stateline.model.store_definition import StoreDefinition
from stateline.processing.failures import FailureHandler
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.processor_context import TaskContext
from stateline.processing.reading import TIMESTAMP_MS
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


class Punctuator:
    """One punctuation of one task, on the worker's thread."""

    def __init__(
        self, punctuation: Punctuation, runner: ProcessorRunner, store: str, times: StreamTimes, now_ms: int
    ) -> None:
        """`store` keeps how far it has come, if there is one of this name; `now_ms` is a clock that never goes back."""
        self.by_stream_time = punctuation.on == "stream_time"
        self._every_ms = punctuation.every_ms
        self._runner, self._store, self._times = runner, store, times
        self._stream_time_ms = times.punctuated(store, runner.name)
        self.due_ms = self._next(self._stream_time_ms) if self.by_stream_time else now_ms + self._every_ms
        """Of stream time, or of that clock."""

    def until_due(self, records: Sequence[Record]) -> int:
        """How many of these records there are up to the first that it is due with, that one included; else all."""
        if max(map(TIMESTAMP_MS, records)) < self.due_ms:
            return len(records)
        return next(n for n, record in enumerate(records, 1) if record.timestamp_ms >= self.due_ms)

    def pass_records(self, records: Sequence[Record]) -> list[OutputRecord] | None:
        """These were processed: call it if it is due by stream time; what it wrote, None if it was not called."""
        self._stream_time_ms = max(self._stream_time_ms, max(map(TIMESTAMP_MS, records)))
        if self._stream_time_ms < self.due_ms:
            return None
        self.due_ms = self._next(self._stream_time_ms)
        self._times.punctuate(self._store, self._runner.name, self._stream_time_ms)
        return self._runner.punctuate(self._stream_time_ms)

    def look_at_clock(self, now_ms: int, time_ms: int) -> list[OutputRecord] | None:
        """As `pass_records`, by the clock: `time_ms` is what the function is told, milliseconds since the epoch."""
        if now_ms < self.due_ms:
            return None
        self.due_ms += (now_ms - self.due_ms) // self._every_ms * self._every_ms + self._every_ms
        return self._runner.punctuate(time_ms)

    def _next(self, called_ms: int) -> int:
        """When it is due next after a call then, -1 for none: multiples of the interval, as Kafka Streams has it."""
        return 0 if called_ms < 0 else (called_ms // self._every_ms + 1) * self._every_ms
