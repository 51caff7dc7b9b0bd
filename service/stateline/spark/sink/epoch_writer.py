"""Writes a pipeline's epochs and markers to the log.

``init_transactions`` of the transactional id ``<application.id>-<pipeline>`` fences an older driver. It also settles a
commit whose outcome is unknown: the markers then show it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stateline.deployment.pipelines.epoch_marker import EPOCHS_SETTINGS, EpochMarker, ResultEnds
from stateline.log import Admin, Log, NewTopic, Producer, TopicInfo
from stateline.model.pipeline import Pipeline, epochs_topic
from stateline.processing.records import OutputRecord
from stateline.spark.sink.json_texts import SHOWN_CHARACTERS
from stateline.spark.sink.result_records import RecordParts, ResultRecord
from stateline.spark.sink.topic_records import LOOK_BACK, last_offsets, newest_markers
from stateline_store import (
    ConfigurationError,
    FencedError,
    InvalidArgumentError,
    RecordError,
    RetryLaterError,
    TopicPartition,
)
from stateline_store.clock import now_ms
from stateline_store.steps import reached

_logger = logging.getLogger(__name__)

# A producer writes about 100,000 rows and 50 MB a second. A transaction lasts long enough for a fifth of that.
_LEAST_ROWS_PER_MS, _LEAST_BYTES_PER_MS = 20, 10_000


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The content of one transaction."""

    records: Collection[RecordParts]
    dead_letters: Sequence[OutputRecord]
    marker: EpochMarker
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TransactionTimeouts:
    """The time after which the broker ends a transaction: usually, and for a large micro-batch. A dead driver delays
    readers of its results for this time, unless another driver starts."""

    usual_ms: int = 60_000
    most_ms: int = 900_000


USUAL_TIMEOUTS = TransactionTimeouts()


class EpochWriter:
    """Writes epochs of one pipeline, on one thread. `markers` has the newest known markers, in order. They are final
    once `take_over` has fenced other drivers."""

    def __init__(
        self,
        log: Log,
        application_id: str,
        pipeline: Pipeline,
        may_write: Callable[[], bool] = lambda: True,
        timeouts: TransactionTimeouts = USUAL_TIMEOUTS,
    ) -> None:
        """`may_write` says, before another driver is fenced, that the other may not write any more."""
        self._may_write = may_write
        self._timeout_ms = self._usual_timeout_ms = timeouts.usual_ms
        self._most_timeout_ms = timeouts.most_ms
        self.markers: deque[EpochMarker] = deque(maxlen=LOOK_BACK)
        self._log = log
        self._pipeline = pipeline
        self._transactional_id = f"{application_id}-{pipeline.name}"
        self._topic = epochs_topic(application_id, pipeline.name)
        self._producer: Producer | None = None
        self._ends_at_start: ResultEnds = {}

    @property
    def newest(self) -> EpochMarker | None:
        return self.markers[-1] if self.markers else None

    def committed(self, admin: Admin, topics: Mapping[str, TopicInfo]) -> tuple[EpochMarker | None, bool]:
        """Return the newest committed marker, and whether no open transaction may have a newer one. Does not fence."""
        if self._topic not in topics:
            return None, True
        place = TopicPartition(self._topic, 0)
        end = admin.log_end(place)
        settled = admin.watermarks(place)[1] >= end  # asked before the markers are read, which reach that far
        markers = newest_markers(self._log, self._topic)
        return (markers[-1] if markers else None), settled

    def create_topic(self, admin: Admin, topics: Mapping[str, TopicInfo]) -> None:
        """Create the markers' topic if it is not among these."""
        if self._topic not in topics:
            admin.create_topics([NewTopic(self._topic, 1, EPOCHS_SETTINGS)])

    def is_ready_for(self, epoch: EpochRows) -> bool:
        """Return whether it can write this epoch in time. If not, call `take_over`, also after `close`."""
        return self._producer is not None and self._most_ms(epoch) <= self._timeout_ms

    def take_over(self, epoch: EpochRows | None = None) -> None:
        """Make a producer that fences older ones and settles their transactions. Only then are the markers final. Its
        transactions may last as long as this epoch needs. Raises `FencedError`, without fencing, if this driver may not
        write."""
        self.close()
        if not self._may_write():
            raise FencedError("Its lease is over: another node may run the pipeline.")
        if epoch is not None:
            self._timeout_ms = max(self._timeout_ms, self._most_ms(epoch))
        try:
            self._producer = self._new_producer()
        except ConfigurationError as error:
            if self._timeout_ms <= self._usual_timeout_ms:
                raise
            _logger.warning("pipeline %s: a transaction gets no longer than usual: %s", self._pipeline.name, error)
            self._timeout_ms = self._most_timeout_ms = self._usual_timeout_ms
            self._producer = self._new_producer()
        self.markers = deque(newest_markers(self._log, self._topic), LOOK_BACK)

    def _new_producer(self) -> Producer:
        producer = self._log.producer(self._transactional_id, transaction_timeout_ms=self._timeout_ms)
        try:
            producer.init_transactions()
        except BaseException:
            producer.close()
            raise
        return producer

    def _most_ms(self, epoch: EpochRows) -> int:
        """Return how long writing may take with a slow broker, up to the longest transaction."""
        rows = len(epoch.records) + len(epoch.dead_letters)
        return min(self._most_timeout_ms, max(rows // _LEAST_ROWS_PER_MS, epoch.size_bytes // _LEAST_BYTES_PER_MS))

    def close(self) -> None:
        """Release the producer, and abort an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def mark_ends(self, partitions: Mapping[str, int]) -> None:
        """Write the ends of results into each marker from now on (whole epochs). If they were just switched on, write
        the newest marker again."""
        self._ends_at_start = last_offsets(self._log, partitions)
        if self.newest is not None and self.newest.result_ends is None:
            marker, producer = replace(self.newest, result_ends=self._ends_at_start), self._ready_producer()
            producer.begin_transaction()
            self._produce_marker(producer, marker)
            producer.commit_transaction()
            self.markers.append(marker)

    def write(self, epoch: EpochRows, clock: StepClock) -> None:
        """Write the epoch in one transaction. Raises `RecordError` for a row that the log refuses: nothing is written
        then. Raises `RetryLaterError` if a transaction timed out, and `FencedError` for another driver."""
        began_s = time.monotonic()
        try:
            self.markers.append(self._write(self._ready_producer(), epoch, clock))
        except FencedError as error:
            took_s = time.monotonic() - began_s
            if took_s * 1000 < self._timeout_ms or not self._may_write():
                raise
            raise RetryLaterError(
                f"Pipeline {self._pipeline.name!r} was writing micro-batch {epoch.marker.batch_id} for {took_s:.0f} s, "
                f"and the log ends a transaction after {self._timeout_ms / 1000:g} s, if it was not another driver: "
                "nothing of it is written. If it comes again, raise transaction.timeout.ms and "
                "pipeline.transaction.timeout.max.ms, up to transaction.max.timeout.ms of the brokers; later ones read "
                "less with a smaller pipeline.max.offsets.per.trigger."
            ) from error
        except InvalidArgumentError as error:
            if not epoch.records:
                raise
            # A broker refuses a batch without naming the row. The largest is the likeliest.
            largest = ResultRecord(*max(epoch.records, key=lambda parts: len(parts[2] or b"")))
            row = f"one of its rows, the largest being {_row(largest)}"
            raise self._refused(error, epoch.marker, largest.topic, row) from error

    def _ready_producer(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def _write(self, producer: Producer, epoch: EpochRows, clock: StepClock) -> EpochMarker:
        produce = producer.produce
        producer.begin_transaction()
        reached("sink:begun")
        self._produce_rows(producer, epoch)
        reached("sink:rows-produced")
        marker = replace(epoch.marker, result_ends=self._ends(producer) if self._pipeline.whole_epochs else None)
        for letter in epoch.dead_letters:
            produce(letter.topic, letter.key, letter.value, timestamp_ms=letter.timestamp_ms, headers=letter.headers)
        self._produce_marker(producer, marker)
        reached("sink:marker-produced")
        clock.passed("produce")
        producer.commit_transaction()
        reached("sink:committed")
        clock.passed("commit")
        return marker

    def _produce_marker(self, producer: Producer, marker: EpochMarker) -> None:
        name = self._pipeline.name.encode()
        producer.produce(self._topic, name, marker.encode(), timestamp_ms=now_ms(), partition=0)

    def _produce_rows(self, producer: Producer, epoch: EpochRows) -> None:
        produce = producer.produce
        try:
            for topic, key, value, at, partition in epoch.records:
                produce(topic, key, value, timestamp_ms=at, partition=partition)
        except InvalidArgumentError as error:
            raise self._refused(error, epoch.marker, topic, _row(ResultRecord(topic, key, value, at))) from error

    def _ends(self, producer: Producer) -> ResultEnds:
        """Return where all results end, including this transaction's."""
        before = self.newest.result_ends if self.newest else None
        ends = {topic: dict(of) for topic, of in (before or self._ends_at_start).items()}
        for (topic, partition), offset in producer.flush().items():
            if topic in self._ends_at_start:  # the last marker is among them
                ends.setdefault(topic, {})[str(partition)] = offset
        reached("sink:flushed")
        return ends

    def _refused(self, error: InvalidArgumentError, marker: EpochMarker, topic: str, row: str) -> RecordError:
        return RecordError(
            f"Pipeline {self._pipeline.name!r} cannot write micro-batch {marker.batch_id} to {topic!r} because of "
            f"{row}: {error} Nothing of it was written: filter or change such rows in the pipeline's function."
        )


def _row(record: ResultRecord) -> str:
    if record.value is None:
        return f"the tombstone of key {record.key[:100]!r}"
    return f"the row {record.value[:SHOWN_CHARACTERS]!r} ({len(record.value)} bytes) of key {record.key[:100]!r}"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a micro-batch: records written (none by a replay), and the time of each step."""

    batch_id: int
    rows: int = 0
    tombstones: int = 0
    dead_lettered: int = 0
    compute_ms: int = 0
    arrange_ms: int = 0
    produce_ms: int = 0
    commit_ms: int = 0


class StepClock:
    """Measures the steps of a micro-batch, since `started_s` of the monotonic clock."""

    def __init__(self, started_s: float) -> None:
        self.steps_ms: dict[str, int] = {}
        self._since_s = started_s

    def passed(self, step: str) -> None:
        """End the step, and start the next one. If a step is repeated, its last time counts."""
        now_s = time.monotonic()
        self.steps_ms[f"{step}_ms"] = round((now_s - self._since_s) * 1000)
        self._since_s = now_s
