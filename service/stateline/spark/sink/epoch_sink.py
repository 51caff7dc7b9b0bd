"""Write each micro-batch to the result topics exactly once, also when Spark replays it.

The query (the checkpoint's id) and the number identify a micro-batch. One transaction of the log has its rows and a
**marker** (`stateline.deployment.pipelines.epoch_marker`).

- If this batch or a later one has a marker, Spark replays the batch. The rows are computed and dropped, because a
  stateful operator commits its state only when its output is consumed. If the batch's end differs from its marker's, it
  is another batch of the same number, and the pipeline stops.
- Compaction may have removed the marker of an earlier batch. Such a batch is dropped without a comparison. This is
  safe: Spark replays without a gap, so the newest marker's batch is compared before new rows are written. If its ends
  are equal, the same input was read.
- A deleted or copied checkpoint, new topics and added partitions are refused (`stateline.spark.sink.identity`).
- An older driver is fenced (`stateline.spark.sink.epoch_writer`). Checks run before the fencing, so that a wrong driver
  does not end a running one. They run again after it, when no other driver writes.
- If a commit's outcome is unknown, a new producer settles it, and the marker shows the outcome.

Update and append mode write all rows. Complete mode writes the difference from the previous result
(`stateline.spark.sink.result_table`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log, TopicInfo
from stateline.model.pipeline import Pipeline
from stateline.processing.records import OutputRecord
from stateline.spark.operators.declared import Declared
from stateline.spark.sink.checkpoint import Ends, ends_of_batch
from stateline.spark.sink.checkpoint_folder import CheckpointFolder
from stateline.spark.sink.dead_letters import DeadLetters
from stateline.spark.sink.epoch_writer import (
    USUAL_TIMEOUTS,
    BatchResult,
    EpochRows,
    EpochWriter,
    StepClock,
    TransactionTimeouts,
)
from stateline.spark.sink.identity import Identity
from stateline.spark.sink.large_results import records_of
from stateline.spark.sink.receiving import EncodedRows, RowReceiver
from stateline.spark.sink.result_checks import check_schema
from stateline.spark.sink.result_records import topic_names
from stateline.spark.sink.result_table import ResultTable
from stateline.spark.sink.sending import SENT, SendRows, Sent
from stateline.spark.sink.topic_records import all_records
from stateline_store import FencedError, InDoubtError, LogUnavailableError
from stateline_store.clock import now_ms
from stateline_store.errors import TopologyError
from stateline_store.steps import reached

_logger = logging.getLogger(__name__)
_ATTEMPTS = 5  # with pauses of 0.1, 0.2, 0.4 and 0.8 s. Then the query fails and its supervisor restarts it.
_FIRST_PAUSE_S = 0.1
_TOLD_LATER = 1000  # micro-batches that Spark may be behind with its reports


Planned = Callable[[str, int], Ends]
"""Returns the ends of a micro-batch, from the id of its query and its number."""


class EpochSink:
    """Writes micro-batches. Pass it to Spark's `foreachBatch`. Spark calls it from its own thread. All objects of the
    log live on one thread of this object. `failure` keeps the error of a call, because Spark keeps only its text."""

    def __init__(
        self,
        log: Log,
        application_id: str,
        pipeline: Pipeline,
        checkpoint: CheckpointFolder,
        receiver: RowReceiver,
        dead_letters: DeadLetters | None = None,
        operators: Sequence[Declared] = (),
        may_write: Callable[[], bool] = lambda: True,
        planned: Planned | None = None,
        timeouts: TransactionTimeouts = USUAL_TIMEOUTS,
    ) -> None:
        """The sink closes `receiver`. `operators` are the stateful ones that its function has declared. `may_write` and
        `timeouts` are `EpochWriter`'s. `planned` is given if another driver may write the checkpoint: it returns
        Spark's own ends of a micro-batch."""
        self.failure: Exception | None = None
        self._written: deque[BatchResult] = deque(maxlen=_TOLD_LATER)
        self._log = log
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._receiver = receiver
        self._dead_letters = dead_letters
        self._planned = planned
        self.identity = Identity(application_id, pipeline, checkpoint, operators)
        self._writer = EpochWriter(log, application_id, pipeline, may_write, timeouts)
        self._results: Mapping[str, TopicInfo] = {}  # the topics written to, as of the start
        self._counted: Mapping[str, TopicInfo] = {}  # topics that must keep their partitions
        self._table: ResultTable | None = None
        self._log_thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{pipeline.name}")

    def open(self, schema: StructType) -> None:
        """Fence older drivers and read the marker. `schema` is that of the pipeline's result. Raises `TopologyError` if
        rows cannot become records, or if marker, checkpoint and topics do not belong together. It raises before it
        fences, unless that changed meanwhile."""
        check_schema(self._pipeline, schema)
        self._check_serdes()
        self._log_thread.submit(self._open).result()

    def _check_serdes(self) -> None:
        try:
            CloudPickleSerializer().dumps(  # type: ignore[no-untyped-call]
                SendRows(self._receiver.address, b"", self._pipeline)
            )
        except Exception as error:
            raise TopologyError(
                f"Pipeline {self._pipeline.name!r} is to be encoded on Spark's executors, and the serdes of "
                f"{', '.join(map(repr, topic_names(self._pipeline)))} cannot be pickled to them: {error}. Let a serde "
                "make what it needs (a client, a lock) when it is first used."
            ) from error

    def written(self, batch_id: int) -> BatchResult | None:
        """Return the result of one of the newest micro-batches, or None. Thread-safe: Spark reports progress later, on
        another thread."""
        return next((each for each in reversed(tuple(self._written)) if each.batch_id == batch_id), None)

    def close(self) -> None:
        try:
            self._log_thread.submit(self._writer.close).result()
        finally:
            self._log_thread.shutdown()
            self._receiver.close()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, or find that it was written. An error ends the query, and nothing of the batch is
        written. `RecordError` names a row that cannot be written. It returns at each start until the pipeline's
        function leaves the row out."""
        try:
            clock = StepClock(time.monotonic())
            query_id = str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
            with closing(self._computed(frame)) as rows:
                reached("sink:computed")
                ends = self._ends(query_id, batch_id)
                letters = self._dead_letters.of_batch(self._checkpoint, batch_id, ends) if self._dead_letters else []
                topic_ids = {name: topic.topic_id for name, topic in self._results.items()}
                marker = EpochMarker(query_id, batch_id, ends, rows.count, topic_ids)
                self.identity.check_ends(marker, self._counted)
                self._log_thread.submit(self._settle, rows, letters, marker, clock).result()
        except Exception as error:
            self.failure = error
            raise

    def _computed(self, frame: DataFrame) -> EncodedRows:
        """Compute all rows exactly once, encoded on the executors."""
        send = SendRows(self._receiver.address, self._receiver.begin(), self._pipeline)
        try:
            sent = [Sent(*row) for row in frame.mapInArrow(send, from_arrow_schema(SENT)).collect()]
        except Exception:
            self._receiver.check()  # raises the cause, if it knows one
            raise
        return self._receiver.take(sent)

    def _ends(self, query_id: str, batch_id: int) -> Ends:
        ends = ends_of_batch(self._checkpoint, batch_id)
        if self._planned is not None and self._planned(query_id, batch_id) != ends:
            raise FencedError(
                f"Another driver of pipeline {self._pipeline.name!r} has planned micro-batch {batch_id}, too, and its "
                "plan is in the checkpoint: start again, with that."
            )
        return ends

    @property
    def _partitions(self) -> dict[str, int]:
        return {name: topic.partitions for name, topic in self._results.items()}

    def _open(self) -> None:
        with closing(self._log.admin()) as admin:
            topics = admin.topics()
            self._refuse_missing(topics)
            self._results = {name: topics[name] for name in topic_names(self._pipeline)}
            newest, settled = self._writer.committed(admin, topics)
            self.identity.check_start(newest, topics, settled=settled)  # before it fences
            self._writer.create_topic(admin, topics)
        self._writer.take_over()
        self._counted = self.identity.check_start(self._writer.newest, topics)
        if self._pipeline.whole_epochs:
            self._writer.mark_ends(self._partitions)
        if self._pipeline.output_mode == "complete":
            self._table = ResultTable(self._pipeline, self._partitions, all_records(self._log, self._partitions))

    def _refuse_missing(self, topics: Mapping[str, TopicInfo]) -> None:
        needed = topic_names(self._pipeline) + ([self._dead_letters.topic] if self._dead_letters else [])
        for name in needed:
            if name not in topics:
                raise TopologyError(
                    f"Pipeline {self._pipeline.name!r} writes to the topic {name!r}, which does not exist: create "
                    "it first."
                )

    def _settle(
        self, rows: EncodedRows, dead_letters: Sequence[OutputRecord], marker: EpochMarker, clock: StepClock
    ) -> None:
        clock.passed("compute")
        if self.identity.is_replay(marker, self._writer.markers):
            self._written.append(BatchResult(marker.batch_id, **clock.steps_ms))
            return
        at_ms = now_ms()
        records = records_of(rows, self._pipeline, at_ms, self._partitions)
        difference = None if self._table is None else self._table.difference(records, at_ms)
        epoch = EpochRows(records if difference is None else difference.records, dead_letters, marker, rows.size_bytes)
        reached("sink:encoded")
        clock.passed("arrange")
        self._write(epoch, clock)
        tombstones = rows.tombstones if difference is None else difference.tombstones
        if self._table is not None and difference is not None:
            self._table.moved(difference)
        counts = len(epoch.records), tombstones, len(epoch.dead_letters)
        self._written.append(BatchResult(marker.batch_id, *counts, **clock.steps_ms))

    def _write(self, epoch: EpochRows, clock: StepClock) -> None:
        """Write, and retry until the log has it for certain."""
        for attempt in range(_ATTEMPTS):
            try:
                if not self._writer.is_ready_for(epoch):
                    self._writer.take_over(epoch)
                    if self.identity.is_replay(epoch.marker, self._writer.markers):
                        return
                self._writer.write(epoch, clock)
            except FencedError as error:
                raise FencedError(
                    f"Another driver of pipeline {self._pipeline.name!r} has started and taken over, here or on "
                    f"another machine: stop one of them. ({error})"
                ) from error
            except (InDoubtError, LogUnavailableError) as error:
                # The outcome is unknown. The next attempt writes only if the marker is absent.
                _logger.warning("pipeline %s: %s; asking the log again", self._pipeline.name, error)
                self._writer.close()
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
            else:
                return
        raise LogUnavailableError(
            f"Micro-batch {epoch.marker.batch_id} of pipeline {self._pipeline.name!r} could not be written in "
            f"{_ATTEMPTS} attempts: start the pipeline again when the log answers; nothing is lost."
        )
