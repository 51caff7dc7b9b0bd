"""What becomes of a record that cannot be read, or whose processor raises.

The settings `deserialization.exception.handler` and `processing.exception.handler` each name one policy:

- fail (the default): the worker stops, and nothing of the record is kept.
- skip: the record is left out and counted.
- dead-letter: the same, and it is sent to the topic `errors.dead.letter.queue.topic.name`.

Dead letters carry the record's own key, value and headers, and Kafka Streams' headers of KIP-1034.
"""

from __future__ import annotations

import logging
import traceback
from typing import Literal

from stateline.log.interface import Record
from stateline.serde import shown
from stateline.worker.records import OutputRecord
from stateline_store import RecordError

logger = logging.getLogger(__name__)

Policy = Literal["fail", "skip", "dead-letter"]


def failure(record: Record, what: str, error: Exception) -> RecordError:
    """The error that names where the record stands and what went wrong."""
    return RecordError(
        f"{what} failed on {record.topic}-{record.partition} offset {record.offset} key {shown(record.key)}: "
        f"{type(error).__name__}: {error}"
    )


class FailureHandler:
    """Applies the two policies, counts what was left out, and collects dead letters. One worker's, one thread's."""

    def __init__(self, reading: Policy, processing: Policy, dead_letter_topic: str | None) -> None:
        self._reading, self._processing = reading, processing
        self._topic = dead_letter_topic
        self._dead_letters: list[OutputRecord] = []
        self.skipped = 0
        self.dead_lettered = 0

    @property
    def undoes_writes(self) -> bool:
        """Whether the worker goes on after a processor has failed, so that its writes must be undone."""
        return self._processing != "fail"

    def cannot_read(self, record: Record, error: Exception) -> None:
        """A key or value that its serde refuses. Raises `RecordError` under the policy fail."""
        self._handle(self._reading, record, "Reading", error)

    def cannot_process(self, record: Record, processor: str, error: Exception) -> None:
        """A processor raised. Raises `RecordError` under the policy fail."""
        self._handle(self._processing, record, f"Processor {processor!r}", error)

    def take_dead_letters(self) -> list[OutputRecord]:
        """Dead letters that have not been taken yet."""
        taken, self._dead_letters = self._dead_letters, []
        return taken

    def _handle(self, policy: Policy, record: Record, what: str, error: Exception) -> None:
        described = failure(record, what, error)
        if policy == "fail":
            raise described from error
        if policy == "dead-letter" and self._topic is not None:
            self._dead_letters.append(_dead_letter(self._topic, record, error))
            self.dead_lettered += 1
        else:
            self.skipped += 1
        logger.warning("%s (policy %s)", described, policy)


def _dead_letter(topic: str, record: Record, error: Exception) -> OutputRecord:
    trace = "".join(traceback.format_exception(error))
    added = {
        "__streams.errors.exception": type(error).__qualname__,
        "__streams.errors.message": str(error),
        "__streams.errors.stacktrace": trace,
        "__streams.errors.topic": record.topic,
        "__streams.errors.partition": str(record.partition),
        "__streams.errors.offset": str(record.offset),
    }
    headers = [*record.headers, *((name, value.encode("utf-8", "replace")) for name, value in added.items())]
    return OutputRecord(topic, record.key, record.value, record.timestamp_ms, headers)
