"""The sink of a pipeline: each micro-batch reaches the result topic exactly once, however often Spark
replays it.

The rule. A micro-batch is known by its query (the checkpoint's id) and its number. Its rows and a
**marker** (`stateline.spark.marker`) are written in one transaction of the log.

- Marker of this batch or a later one: Spark replays it. The frame is computed all the same, since a stateful
  operator commits its state only when all of it was consumed, and the rows are dropped. If it ends
  elsewhere than its marker says, it is another batch under the same number, and the pipeline stops. The marker of
  an earlier batch may be gone (the topic is compacted); such a batch is dropped without a comparison, which is safe:
  Spark replays on without a gap, so the newest marker's own batch comes, and is compared, before anything new is
  written. Ends that agree there mean that the same input was read up to them, in other portions at most.
- Marker of another query: the checkpoint was deleted or exchanged; everything would be written again.
  Refused.
- An older driver is fenced by ``init_transactions`` of the same transactional id,
  ``<application.id>-<pipeline>``.
- A commit whose outcome is unknown is settled by ``init_transactions`` of a new producer; the marker then
  tells whether it happened.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame

from stateline.log import Log, NewTopic, Producer
from stateline.spark.marker import LOOK_BACK, Marker, epochs_topic, newest_markers
from stateline.spark.rows import SHOWN_CHARACTERS, ResultRecord, check_pipeline, now_ms, result_records
from stateline.topology import Pipeline
from stateline_store import (
    DamagedDataError,
    InDoubtError,
    InvalidArgumentError,
    LogUnavailableError,
    RecordError,
    StatelineError,
    TopologyError,
)

_logger = logging.getLogger(__name__)
_ATTEMPTS = 5  # with pauses of 0.1, 0.2, 0.4 and 0.8 s; after that the query fails and its supervisor starts anew
_FIRST_PAUSE_S = 0.1


def checkpoint_query_id(checkpoint: Path) -> str | None:
    """The id of the query that this checkpoint belongs to; None when there is no checkpoint."""
    try:
        return str(orjson.loads((checkpoint / "metadata").read_bytes())["id"])
    except FileNotFoundError:
        return None


def checkpoint_end_offsets(checkpoint: Path, batch_id: int) -> tuple[str | None, ...]:
    """Where the micro-batch ends in each source, as Spark wrote it down before it computed the batch.

    The file is Spark's OffsetSeqLog: ``v1``, a line of metadata, then one line per source, "-" for none.
    Raises `DamagedDataError` for another format.
    """
    path = checkpoint / "offsets" / str(batch_id)
    version, _metadata, *offsets = path.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise DamagedDataError(
            f"{path} begins with {version[:40]!r}, not 'v1': this version of Spark writes checkpoints that Stateline "
            "does not know. Use pyspark 4.2 or 4.3."
        )
    return tuple(None if line == "-" else line for line in offsets)


class EpochSink:
    """Writes micro-batches; pass it to Spark's `foreachBatch`.

    Spark calls it from a thread of its own; everything of the log lives on one thread of this object. What
    a call raised stays in `failure`, because Spark keeps only its text.
    """

    def __init__(self, log: Log, application_id: str, pipeline: Pipeline, checkpoint: Path) -> None:
        self.failure: Exception | None = None
        self._log = log
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._transactional_id = f"{application_id}-{pipeline.name}"
        self._topic = epochs_topic(application_id, pipeline.name)
        self._producer: Producer | None = None
        self._markers: deque[Marker] = deque(maxlen=LOOK_BACK)  # the newest last, as far as is known
        self._owner = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{pipeline.name}")

    def open(self, columns: Sequence[str]) -> None:
        """Fence older drivers and read the marker. `columns` are those of the pipeline's result.

        Raises `TopologyError` when the rows cannot become records, or when the marker belongs to another
        checkpoint than the one that is here.
        """
        check_pipeline(self._pipeline, columns)
        self._owner.submit(self._open).result()
        self._refuse_another_query(checkpoint_query_id(self._checkpoint))

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
            query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            table = frame.toArrow()  # exactly once, and all of it, whatever happens to the rows
            self._refuse_another_query(query_id)
            offsets = checkpoint_end_offsets(self._checkpoint, batch_id)
            self._owner.submit(self._settle, table, Marker(str(query_id), batch_id, offsets)).result()
        except Exception as error:
            self.failure = error
            raise

    def _open(self) -> None:
        with closing(self._log.admin()) as admin:
            topics = admin.topics()
            if self._pipeline.writes.name not in topics:
                raise TopologyError(
                    f"Pipeline {self._pipeline.name!r} writes to the topic {self._pipeline.writes.name!r}, which does "
                    "not exist: create it first."
                )
            if self._topic not in topics:
                admin.create_topics([NewTopic(self._topic, 1, {"cleanup.policy": "compact"})])
        self._renew()

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

    def _refuse_another_query(self, query_id: str | None) -> None:
        if not self._markers or self._markers[-1].query_id == query_id:
            return
        marker = self._markers[-1]
        found = f"belongs to query {query_id}" if query_id else "is gone"
        raise TopologyError(
            f"Pipeline {self._pipeline.name!r} has written {self._pipeline.writes.name!r} up to micro-batch "
            f"{marker.batch_id} of query {marker.query_id}, but the checkpoint {self._checkpoint} {found}: it "
            "was deleted or exchanged, and starting over would write every result a second time. Restore the "
            f"checkpoint; or, to start over, delete the topics {self._topic} and {self._pipeline.writes.name}."
        )

    def _settle(self, table: pa.Table, batch: Marker) -> None:
        if self._is_replay(batch):
            return
        records = list(result_records(table, self._pipeline, now_ms()))
        for attempt in range(_ATTEMPTS):
            try:
                if self._producer is None:
                    self._renew()
                    if self._is_replay(batch):
                        return
                assert self._producer is not None
                self._write(self._producer, records, batch)
            except (InDoubtError, LogUnavailableError) as error:
                # Written or not: the next round asks the log itself, and writes only if the marker is absent.
                self._abandon(error, attempt)
            else:
                self._markers.append(batch)
                return
        raise LogUnavailableError(
            f"Micro-batch {batch.batch_id} of pipeline {self._pipeline.name!r} could not be written in {_ATTEMPTS} "
            "attempts: start the pipeline again when the log answers; nothing is lost."
        )

    def _is_replay(self, batch: Marker) -> bool:
        """Whether the result topic holds the batch. Raises `DamagedDataError` if what it holds is another one."""
        if not self._markers or batch.batch_id > self._markers[-1].batch_id:
            return False
        marker = next((marker for marker in self._markers if marker.batch_id == batch.batch_id), batch)
        if batch.end_offsets != marker.end_offsets:
            raise DamagedDataError(
                f"Micro-batch {batch.batch_id} of pipeline {self._pipeline.name!r} now ends at "
                f"{_shown(batch.end_offsets)}, but was written to {self._pipeline.writes.name!r} up to "
                f"{_shown(marker.end_offsets)}: the checkpoint {self._checkpoint} lost a part. Restore it; or, to "
                f"start over, delete it and the topics {self._topic} and {self._pipeline.writes.name}."
            )
        # An earlier batch than the newest is replayed when a power cut took more than one commit of the checkpoint.
        _logger.info("pipeline %s: micro-batch %d is written already", self._pipeline.name, batch.batch_id)
        return True

    def _write(self, producer: Producer, records: Sequence[ResultRecord], batch: Marker) -> None:
        topic, produce = self._pipeline.writes.name, producer.produce
        producer.begin_transaction()
        record: ResultRecord | None = None
        try:
            for record in records:
                produce(topic, record.key, record.value, timestamp_ms=record.timestamp_ms)
            record = None
            name = self._pipeline.name.encode()
            produce(self._topic, name, batch.encode(), timestamp_ms=now_ms(), partition=0)
            producer.commit_transaction()
        except InvalidArgumentError as error:
            if not records:
                raise
            row = _row(record) if record is not None else _suspect(records)
            raise RecordError(
                f"Pipeline {self._pipeline.name!r} cannot write micro-batch {batch.batch_id} to {topic!r} because of "
                f"{row}: {error} Nothing of it was written: filter or change such rows in the pipeline's function."
            ) from error

    def _abandon(self, error: StatelineError, attempt: int) -> None:
        _logger.warning("pipeline %s: %s; asking the log again", self._pipeline.name, error)
        self._close_producer()
        time.sleep(_FIRST_PAUSE_S * 2**attempt)


def _row(record: ResultRecord) -> str:
    return f"the row {record.value[:SHOWN_CHARACTERS]!r} ({len(record.value)} bytes) of key {record.key[:100]!r}"


def _suspect(records: Sequence[ResultRecord]) -> str:
    """A broker refuses many rows at once and does not say because of which one: the largest is the likeliest."""
    return f"one of its rows, the largest being {_row(max(records, key=lambda record: len(record.value)))}"


def _shown(offsets: Sequence[str | None]) -> str:
    return ", ".join(offset or "-" for offset in offsets)
