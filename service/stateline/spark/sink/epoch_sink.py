"""The sink of a pipeline: each micro-batch reaches the result topics exactly once, however often Spark
replays it.

The rule. A micro-batch is known by its query (the checkpoint's id) and its number. Its rows and a
**marker** (`stateline.deployment.epoch_marker`) are written in one transaction of the log.

- EpochMarker of this batch or a later one: Spark replays it. The frame is computed all the same, since a stateful
  operator commits its state only when all of it was consumed, and the rows are dropped. If it ends
  elsewhere than its marker says, it is another batch under the same number, and the pipeline stops. The marker of
  an earlier batch may be gone (the topic is compacted); such a batch is dropped without a comparison, which is safe:
  Spark replays on without a gap, so the newest marker's own batch comes, and is compared, before anything new is
  written. Ends that agree there mean that the same input was read up to them, in other portions at most.
- What else does not belong together (a checkpoint deleted or copied, topics made anew, partitions added) is refused:
  `stateline.spark.sink.identity`.
- An older driver is fenced by ``init_transactions`` of the same transactional id,
  ``<application.id>-<pipeline>``. What can be refused is refused before, so that a driver that is wrong leaves alone
  the one that runs; and looked at again behind it, because only then nobody writes any more.
- A commit whose outcome is unknown is settled by ``init_transactions`` of a new producer; the marker then
  tells whether it happened.

In update and append mode rows are written as they come; in complete mode what differs from the result before
(`stateline.spark.sink.result_table`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from stateline.deployment.epoch_marker import EPOCHS_SETTINGS, EpochMarker, ResultEnds
from stateline.log import Admin, Log, NewTopic, Producer, TopicInfo
from stateline.model.pipeline import Pipeline, epochs_topic
from stateline.processing.records import OutputRecord
from stateline.spark.operators.declared import Declared
from stateline.spark.sink.checkpoint import checkpoint_end_offsets
from stateline.spark.sink.dead_letters import DeadLetters
from stateline.spark.sink.encoding import encoded
from stateline.spark.sink.identity import Identity
from stateline.spark.sink.newest_markers import LOOK_BACK, newest_markers
from stateline.spark.sink.result_checks import check_schema
from stateline.spark.sink.result_records import RecordParts, ResultRecord, result_records, topic_names
from stateline.spark.sink.result_table import Difference, ResultTable
from stateline.spark.sink.rows import SHOWN_CHARACTERS
from stateline.spark.sink.topic_records import all_records, last_offsets
from stateline_store import (
    FencedError,
    InDoubtError,
    InvalidArgumentError,
    LogUnavailableError,
    RecordError,
    StatelineError,
    TopicPartition,
)
from stateline_store.clock import now_ms
from stateline_store.errors import TopologyError
from stateline_store.steps import reached

_logger = logging.getLogger(__name__)
_ATTEMPTS = 5  # with pauses of 0.1, 0.2, 0.4 and 0.8 s; after that the query fails and its supervisor starts anew
_FIRST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Written:
    """What a micro-batch came to: records written (a replay writes none), and how long each step took."""

    batch_id: int
    rows: int = 0
    tombstones: int = 0
    dead_lettered: int = 0
    compute_ms: int = 0
    encode_ms: int = 0
    produce_ms: int = 0
    commit_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """All that one transaction writes."""

    records: Collection[RecordParts]
    dead_letters: Sequence[OutputRecord]
    marker: EpochMarker
    difference: Difference | None


class EpochSink:
    """Writes micro-batches; pass it to Spark's `foreachBatch`.

    Spark calls it from a thread of its own; everything of the log lives on one thread of this object. What
    a call raised stays in `failure`, because Spark keeps only its text. `last` is the newest micro-batch, before Spark
    reports its progress.
    """

    def __init__(
        self,
        log: Log,
        application_id: str,
        pipeline: Pipeline,
        checkpoint: Path,
        dead_letters: DeadLetters | None = None,
        operators: Sequence[Declared] = (),
    ) -> None:
        """`operators` are those with state that the pipeline's function has declared."""
        self.failure: Exception | None = None
        self.last: Written | None = None
        self._log = log
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._dead_letters = dead_letters
        self._transactional_id = f"{application_id}-{pipeline.name}"
        self._topic = epochs_topic(application_id, pipeline.name)
        self._identity = Identity(application_id, pipeline, checkpoint, operators)
        self._producer: Producer | None = None
        self._partitions: Mapping[str, int] = {}
        self._topic_ids: Mapping[str, str] = {}
        self._counted: Mapping[str, TopicInfo] = {}  # whose partitions must stay
        self._ends_at_start: ResultEnds = {}
        self._table: ResultTable | None = None
        self._markers: deque[EpochMarker] = deque(maxlen=LOOK_BACK)  # the newest last, as far as is known
        self._owner = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{pipeline.name}")

    def open(self, schema: StructType) -> None:
        """Fence older drivers and read the marker. `schema` is that of the pipeline's result.

        Raises `TopologyError` when the rows cannot become records, or when marker, checkpoint and topics do not belong
        together: before anybody is fenced, unless that came about meanwhile.
        """
        check_schema(self._pipeline, schema)
        self._owner.submit(self._open).result()

    @property
    def after_a_change(self) -> str:
        """What to do about a checkpoint that the pipeline's code does not fit any more."""
        return self._identity.after_a_change

    def close(self) -> None:
        """Release everything; a transaction that is open is aborted."""
        self._owner.submit(self._close_producer).result()
        self._owner.shutdown()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, or see that it was written. Raises to end the query; then nothing of it is written.

        `RecordError` names a row that cannot be written: it comes again at each start, until the pipeline's function
        leaves it out.
        """
        try:
            started = time.monotonic()
            query_id = str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
            table = frame.toArrow()  # exactly once, and all of it, whatever comes of the rows
            reached("sink:computed")
            ends = checkpoint_end_offsets(self._checkpoint, batch_id)
            letters = self._dead_letters.of_batch(self._checkpoint, batch_id, ends) if self._dead_letters else []
            marker = EpochMarker(query_id, batch_id, ends, len(table), self._topic_ids)
            self._identity.check_ends(marker, self._counted)
            self._owner.submit(self._settle, table, letters, marker, started).result()
        except Exception as error:
            self.failure = error
            raise

    def _open(self) -> None:
        needed = topic_names(self._pipeline) + ([self._dead_letters.topic] if self._dead_letters else [])
        with closing(self._log.admin()) as admin:
            topics = admin.topics()
            for name in needed:
                if name not in topics:
                    raise TopologyError(
                        f"Pipeline {self._pipeline.name!r} writes to the topic {name!r}, which does not exist: create "
                        "it first."
                    )
            names = topic_names(self._pipeline)
            self._partitions = {name: topics[name].partitions for name in names}
            self._topic_ids = {name: topics[name].topic_id for name in names}
            self._look_before_fencing(admin, topics)
            if self._topic not in topics:
                admin.create_topics([NewTopic(self._topic, 1, EPOCHS_SETTINGS)])
        self._renew()
        self._counted = self._identity.check_start(self._markers[-1] if self._markers else None, topics)
        if self._pipeline.whole_epochs:
            self._ends_at_start = last_offsets(self._log, self._partitions)
            self._say_ends()
        if self._pipeline.output_mode == "complete":
            self._table = ResultTable(self._pipeline, self._partitions, all_records(self._log, self._partitions))

    def _look_before_fencing(self, admin: Admin, topics: Mapping[str, TopicInfo]) -> None:
        """Raise as `Identity.check_start`, by the markers that are committed now."""
        markers, settled = list[EpochMarker](), True
        if self._topic in topics:
            place = TopicPartition(self._topic, 0)
            end = admin.log_end(place)
            settled = admin.watermarks(place)[1] >= end  # before the markers are read: they go that far at least
            markers = newest_markers(self._log, self._topic)
        self._identity.check_start(markers[-1] if markers else None, topics, settled=settled)

    def _say_ends(self) -> None:
        """Whole epochs were switched on: write the newest marker again, with where its results end."""
        if self._markers and self._markers[-1].result_ends is None:
            assert self._producer is not None
            marker = replace(self._markers[-1], result_ends=self._ends_at_start)
            self._producer.begin_transaction()
            self._produce_marker(self._producer, marker)
            self._producer.commit_transaction()
            self._markers.append(marker)

    def _renew(self) -> None:
        """A producer that has fenced and settled whatever was before it; only then is the marker's word final."""
        self._close_producer()
        self._producer = self._log.producer(self._transactional_id)
        self._producer.init_transactions()
        self._markers = deque(newest_markers(self._log, self._topic), LOOK_BACK)

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _settle(
        self, table: pa.Table, dead_letters: Sequence[OutputRecord], marker: EpochMarker, started: float
    ) -> None:
        clock = _Clock(started)
        clock.passed("compute")
        if self._identity.is_replay(marker, self._markers):
            self.last = Written(marker.batch_id, **clock.steps_ms)
            return
        batch = self._batch(table, dead_letters, marker)
        reached("sink:encoded")
        clock.passed("encode")
        for attempt in range(_ATTEMPTS):
            try:
                self._attempt(batch, clock)
            except FencedError as error:
                raise FencedError(
                    f"Another driver of pipeline {self._pipeline.name!r} has started and taken over, here or on "
                    f"another machine: stop one of them. ({error})"
                ) from error
            except (InDoubtError, LogUnavailableError) as error:
                # Written or not: the next round asks the log itself, and writes only if the marker is absent.
                self._abandon(error, attempt)
            else:
                self._note(batch, clock)
                return
        raise LogUnavailableError(
            f"Micro-batch {marker.batch_id} of pipeline {self._pipeline.name!r} could not be written in {_ATTEMPTS} "
            "attempts: start the pipeline again when the log answers; nothing is lost."
        )

    def _batch(self, table: pa.Table, dead_letters: Sequence[OutputRecord], marker: EpochMarker) -> _Batch:
        now = now_ms()
        records = result_records(encoded(table, self._pipeline), self._pipeline, now, self._partitions)
        difference = None if self._table is None else self._table.difference(records, now)
        return _Batch(records if difference is None else difference.records, dead_letters, marker, difference)

    def _attempt(self, batch: _Batch, clock: _Clock) -> None:
        if self._producer is None:
            self._renew()
            if self._identity.is_replay(batch.marker, self._markers):
                return
        assert self._producer is not None
        try:
            self._markers.append(self._write(self._producer, batch, clock))
        except InvalidArgumentError as error:
            if not batch.records:
                raise
            # A broker refuses many rows at once and does not say because of which one: the largest is the likeliest.
            largest = ResultRecord(*max(batch.records, key=lambda parts: len(parts[2] or b"")))
            row = f"one of its rows, the largest being {_row(largest)}"
            raise self._refused(error, batch.marker, largest.topic, row) from error

    def _note(self, batch: _Batch, clock: _Clock) -> None:
        """It is in the log for certain."""
        if self._table is not None and batch.difference is not None:
            self._table.moved(batch.difference)
        tombstones = sum(parts[2] is None for parts in batch.records)
        counts = len(batch.records), tombstones, len(batch.dead_letters)
        self.last = Written(batch.marker.batch_id, *counts, **clock.steps_ms)

    def _write(self, producer: Producer, batch: _Batch, clock: _Clock) -> EpochMarker:
        """One transaction; the marker as written."""
        produce = producer.produce
        producer.begin_transaction()
        reached("sink:begun")
        self._produce_rows(producer, batch)
        reached("sink:rows-produced")
        ends = self._ends(producer) if self._pipeline.whole_epochs else None
        marker = replace(batch.marker, result_ends=ends)
        for letter in batch.dead_letters:
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

    def _produce_rows(self, producer: Producer, batch: _Batch) -> None:
        produce = producer.produce
        try:
            for topic, key, value, at, partition in batch.records:
                produce(topic, key, value, timestamp_ms=at, partition=partition)
        except InvalidArgumentError as error:
            refused = ResultRecord(topic, key, value, at)
            raise self._refused(error, batch.marker, topic, _row(refused)) from error

    def _ends(self, producer: Producer) -> ResultEnds:
        """Where everything so far ends, this transaction's rows included."""
        before = self._markers[-1].result_ends if self._markers else None
        ends = {topic: dict(of) for topic, of in (before or self._ends_at_start).items()}
        for (topic, partition), offset in producer.flush().items():
            if topic in self._partitions:  # the last marker is among them
                ends.setdefault(topic, {})[str(partition)] = offset
        reached("sink:flushed")
        return ends

    def _refused(self, error: InvalidArgumentError, marker: EpochMarker, topic: str, row: str) -> RecordError:
        return RecordError(
            f"Pipeline {self._pipeline.name!r} cannot write micro-batch {marker.batch_id} to {topic!r} because of "
            f"{row}: {error} Nothing of it was written: filter or change such rows in the pipeline's function."
        )

    def _abandon(self, error: StatelineError, attempt: int) -> None:
        _logger.warning("pipeline %s: %s; asking the log again", self._pipeline.name, error)
        self._close_producer()
        time.sleep(_FIRST_PAUSE_S * 2**attempt)


class _Clock:
    """How long each step of a micro-batch took, since `started`."""

    def __init__(self, started: float) -> None:
        self.steps_ms: dict[str, int] = {}
        self._since = started

    def passed(self, step: str) -> None:
        """The step ends now, and the next one begins. Of one that is done again the last time counts."""
        now = time.monotonic()
        self.steps_ms[f"{step}_ms"] = round((now - self._since) * 1000)
        self._since = now


def _row(record: ResultRecord) -> str:
    if record.value is None:
        return f"the tombstone of key {record.key[:100]!r}"
    return f"the row {record.value[:SHOWN_CHARACTERS]!r} ({len(record.value)} bytes) of key {record.key[:100]!r}"
