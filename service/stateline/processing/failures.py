"""Handles records that cannot be read, or whose processor raises.

The settings `deserialization.exception.handler` and `processing.exception.handler` each name one policy:

- fail (the default): the worker stops, and nothing of the record is kept.
- skip: the record is left out and counted.
- dead-letter: the same, and it is sent to the topic `errors.dead.letter.queue.topic.name`.

`production.exception.handler` is fail or skip, for a forwarded record that the log refuses.

A dead letter has the record's own key, value and headers, and Kafka Streams' headers of KIP-1034. If the log would not
take the record's timestamp, the dead letter gets the time now, and the record's own in a header. A store of waiting
rows does not keep their records: they are read from the log again. If the log has deleted one, its dead letter has no
value.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from stateline.config.settings import Config
from stateline.log.interface import Record
from stateline.processing.records import HeldRecord, OutputRecord
from stateline.serde.plain import shown
from stateline_store import RecordError, StatelineError, TopicPartition
from stateline_store.clock import now_ms

logger = logging.getLogger(__name__)

# A dead letter is larger than its record; it should still be one that a broker takes.
_TRACE_CHARACTERS = 4_000
_LOG_INTERVAL_S = 60.0
DEAD_LETTER = "__streams.errors."
"""With this begin the names of a dead letter's headers: Kafka Streams' (KIP-1034)."""

Policy = Literal["fail", "skip", "dead-letter"]
Reason: TypeAlias = Literal[
    "late", "no_key", "no_value", "no_partition", "no_timestamp", "stale", "too_far_ahead", "skipped", "dead_letter"
]
ReadAgain: TypeAlias = Callable[[TopicPartition, int], Record | None]
"""Returns the record of an offset, None if the log has deleted it."""
_WHY: Mapping[str, str] = {
    "late": "came after their windows had closed, or their store's retention was over",
    "no_key": "have no key",
    "no_value": "have no value",
    "no_partition": "got no partition from the partitioner",
    "no_timestamp": "have no valid timestamp",
    "stale": "answer a left row that has changed since",
}


@dataclass(slots=True)
class StepCounts:
    """Records that a step was given, and dropped. A late record counts once for each window that it misses."""

    taken: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def reading_of(topic: str) -> str:
    """Name the step that reads a topic."""
    return f"read {topic}"


# Failures of a user's function. It has no process of its own that `SystemExit` could end.
Raised = Exception | SystemExit


def failure(record: Record, what: str, error: Raised) -> str:
    """Describe in one line where the record stands, what went wrong, and where in the code."""
    return (
        f"{what} failed on {record.topic}-{record.partition} offset {record.offset} key {shown(record.key)}: "
        f"{_one_line(error)}."
    )


def _one_line(error: Raised) -> str:
    text = " ".join(str(error).split()) or "no message"
    place = _raised_at(error)
    return f"{type(error).__name__}: {text if place else text.rstrip('.')}{place}"


def _raised_at(error: Raised) -> str:
    if isinstance(error, StatelineError) or error.__traceback__ is None:
        return ""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({frame.filename}:{frame.lineno})"


class FailureHandler:
    """Applies the policies, counts records that are left out, and collects dead letters. One worker's, for one
    thread."""

    def __init__(
        self,
        reading: Policy,
        processing: Policy,
        dead_letter_topic: str | None,
        production: Literal["fail", "skip"] = "fail",
        read_again: ReadAgain = lambda place, offset: None,
    ) -> None:
        self._reading, self._processing, self._production = reading, processing, production
        self._topic, self._read_again = dead_letter_topic, read_again
        self._dead_letters: list[OutputRecord] = []
        self.skipped = 0
        self.dead_lettered = 0
        self.dropped = 0
        self.steps = defaultdict[str, StepCounts](StepCounts)
        self._step = ""
        self._logged_s: dict[tuple[str, Reason], float] = {}

    @classmethod
    def of(cls, config: Config, read_again: ReadAgain = lambda place, offset: None) -> FailureHandler:
        return cls(
            config.deserialization_exception_handler,
            config.processing_exception_handler,
            config.dead_letter_topic,
            config.production_exception_handler,
            read_again,
        )

    @property
    def undoes_writes(self) -> bool:
        """Whether the worker continues after a processor has failed, so that its writes must be undone."""
        return self._processing != "fail"

    @property
    def reading_fails(self) -> bool:
        return self._reading == "fail"

    @property
    def writes_dead_letters(self) -> bool:
        """Whether a record may be written to a dead-letter topic."""
        return self._topic is not None and "dead-letter" in (self._reading, self._processing)

    @property
    def leaves_out_refused(self) -> bool:
        return self._production == "skip"

    def give(self, step: str, records: int) -> None:
        """Count records that a step is given. `drop` counts for this step until the next call."""
        self._step = step
        self.steps[step].taken += records

    def cannot_read(
        self, record: Record, error: Raised, at_ms: int | None = None, reason: Reason | None = None
    ) -> None:
        """Handle an unreadable key or value, or an invalid timestamp. `at_ms` is the time of its dead letter, if it is
        not the record's. Without a `reason` the policy counts as the reason. Raises `RecordError` under the policy
        fail."""
        setting, step = "deserialization.exception.handler", reading_of(record.topic)
        policy = self._handle(setting, self._reading, record, "Reading", error, at_ms)
        self.steps[step].dropped[reason or policy] += 1

    def cannot_process(self, record: Record, processor: str, error: Raised) -> None:
        """Handle what a processor raised. Raises `RecordError` under the policy fail."""
        setting, step = "processing.exception.handler", processor if processor in self.steps else self._step
        policy = self._handle(setting, self._processing, record, f"Processor {processor!r}", error)
        self.steps[step].dropped[policy] += 1

    def cannot_punctuate(self, name: str, timestamp_ms: int, error: Raised) -> None:
        """Handle what a punctuation raised. It has no record, so skip and dead-letter both count as skipped. Raises
        `RecordError` under the policy fail."""
        described = f"Punctuation {name!r} failed at {timestamp_ms}: {_one_line(error)}."
        self._skip("processing.exception.handler", self._processing, described, error)
        self.steps[name].dropped["skipped"] += 1

    def cannot_produce(self, topic: str, key: bytes | None, error: Raised) -> None:
        """Handle a forwarded record that the log refuses. Raises `RecordError` under the policy fail, and always for a
        dead letter: it is all that is left of a record."""
        described = f"The log refuses a record for {topic!r} of key {shown(key)}: {_one_line(error)}."
        if topic == self._topic:
            raise RecordError(f"{described} It is a dead letter, which no policy leaves out.") from error
        self._skip("production.exception.handler", self._production, described, error)
        self.steps[f"to {topic}"].dropped["skipped"] += 1

    def drop(self, records: int, reason: Reason, step: str | None = None) -> None:
        """Count records that a step leaves out by Kafka Streams' rules, under every policy. The step is the last one of
        `give`, unless `step` names another. Logs once a minute for each step and reason."""
        if records:
            self.dropped += records
            self._note_dropped(records, reason, self._step if step is None else step)

    def drop_late_puts(self, puts: int, step: str) -> None:
        """Count a processor's puts that were too late for its stores. The stores count them, too."""
        self._note_dropped(puts, "late", step)

    def _note_dropped(self, records: int, reason: Reason, step: str) -> None:
        counts, now_s = self.steps[step], time.monotonic()
        counts.dropped[reason] += records
        if now_s - self._logged_s.get((step, reason), -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_s[step, reason] = now_s
            dropped = counts.dropped[reason]
            logger.warning(
                "Step %r drops records that %s: %d so far, of %d records", step, _WHY[reason], dropped, counts.taken
            )

    def take_dead_letters(self) -> list[OutputRecord]:
        taken, self._dead_letters = self._dead_letters, []
        return taken

    def _skip(self, setting: str, policy: Policy, described: str, error: Raised) -> None:
        if policy == "fail":
            raise RecordError(f"{described} Mend it, or set {setting} to skip.") from error
        self.skipped += 1
        logger.warning("%s (policy %s)", described, policy)

    def _handle(
        self, setting: str, policy: Policy, record: Record, what: str, error: Raised, at_ms: int | None = None
    ) -> Reason:
        described = failure(record, what, error)
        if policy == "fail":
            raise RecordError(f"{described} Mend it, or set {setting} to skip or dead-letter.") from error
        if policy == "dead-letter" and self._topic is not None:
            if isinstance(record, HeldRecord):
                read = self._read_again(TopicPartition(record.topic, record.partition), record.offset)
                record = record._replace(value=None) if read is None else read
            self._dead_letters.append(dead_letter(self._topic, record, error, at_ms))
            self.dead_lettered += 1
            became: Reason = "dead_letter"
        else:
            self.skipped += 1
            became = "skipped"
        logger.warning("%s (policy %s)", described, policy)
        return became


def dead_letter(topic: str, record: Record, error: Raised, at_ms: int | None = None) -> OutputRecord:
    """Make the record for the dead-letter topic. Its timestamp is `at_ms`, else the record's, or the time now for one
    before 1970, which no log takes."""
    if at_ms is None:
        at_ms = record.timestamp_ms if record.timestamp_ms >= 0 else now_ms()
    trace = "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]
    added = {
        "exception": type(error).__qualname__,
        "message": str(error)[:_TRACE_CHARACTERS],
        "stacktrace": trace,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        **({} if at_ms == record.timestamp_ms else {"timestamp": str(record.timestamp_ms)}),
    }
    told = [(DEAD_LETTER + name, value.encode("utf-8", "replace")) for name, value in added.items()]
    headers = [*record.headers, *told]
    return OutputRecord(topic, record.key, record.value, at_ms, headers)


def dead_letter_of(record: Record) -> dict[str, Any] | None:
    """Return where a dead letter comes from and why, by its headers; None for other records."""
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    found: dict[str, Any] = {
        name.removeprefix(DEAD_LETTER): value for name, value in headers.items() if name.startswith(DEAD_LETTER)
    }
    for name in ("partition", "offset"):
        if (text := str(found.get(name, ""))).isascii() and text.isdigit():
            found[name] = int(text)
    return found if "topic" in found else None
