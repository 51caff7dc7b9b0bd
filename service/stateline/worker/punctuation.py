"""Functions of an application that are called as time goes by, not for a record (Kafka Streams' punctuation).

Calls are due at multiples of the interval: of stream time, which is the largest timestamp of the task's records so far,
or of the clock since the task began to run. One that is due is made once, however much time has passed at once. By
stream time the first is made at the task's first record, and each later one right after the record that it is due with.
That it was is kept with the first of its stores that is transactional: after a restart it goes on from there, or, where
a crash came between the log's commit and the store's, with a call for the same time again.
"""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.model.processor import Punctuation
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.reading import TIMESTAMP_MS
from stateline.processing.records import OutputRecord
from stateline.worker.processor_runner import ProcessorRunner


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
