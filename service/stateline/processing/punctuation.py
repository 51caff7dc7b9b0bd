"""Calls an application's punctuations as time goes by (Kafka Streams' punctuation).

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
from stateline.model.processor import Punctuation
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.reading import TIMESTAMP_MS
from stateline.processing.records import OutputRecord
from stateline.processing.user_function import UserFunction


class Punctuator:
    """One punctuation of one task, on the worker's thread."""

    def __init__(
        self, punctuation: Punctuation, function: UserFunction, store: str, times: StreamTimes, now_ms: int
    ) -> None:
        """`store` keeps the time of the last call, if there is one of this name. `now_ms` is of a clock that never goes
        back. `due_ms` is the next call's stream time, or time of that clock."""
        self.by_stream_time = punctuation.on == "stream_time"
        self._every_ms = punctuation.every_ms
        self._function, self._store, self._times = function, store, times
        self._stream_time_ms = times.punctuated(store, function.name)
        self.due_ms = self._next(self._stream_time_ms) if self.by_stream_time else now_ms + self._every_ms

    def until_due(self, records: Sequence[Record]) -> int:
        """Count the records up to and with the first that makes it due; all of them if none does."""
        if max(map(TIMESTAMP_MS, records)) < self.due_ms:
            return len(records)
        return next(n for n, record in enumerate(records, 1) if record.timestamp_ms >= self.due_ms)

    def pass_records(self, records: Sequence[Record]) -> list[OutputRecord] | None:
        """Call it if it is due by stream time after these records. Returns its output, or None if it was not called."""
        self._stream_time_ms = max(self._stream_time_ms, max(map(TIMESTAMP_MS, records)))
        if self._stream_time_ms < self.due_ms:
            return None
        self.due_ms = self._next(self._stream_time_ms)
        self._times.punctuate(self._store, self._function.name, self._stream_time_ms)
        return self._function.forwarded(self._stream_time_ms, self._stream_time_ms, None)

    def look_at_clock(self, now_ms: int, time_ms: int) -> list[OutputRecord] | None:
        """Call it with `time_ms`, the time since the epoch, if it is due by the clock. Returns as `pass_records`."""
        if now_ms < self.due_ms:
            return None
        self.due_ms += (now_ms - self.due_ms) // self._every_ms * self._every_ms + self._every_ms
        return self._function.forwarded(time_ms, time_ms, None)

    def _next(self, called_ms: int) -> int:
        return 0 if called_ms < 0 else (called_ms // self._every_ms + 1) * self._every_ms
