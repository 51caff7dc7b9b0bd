"""Whether a pipeline's checkpoint, its markers and its topics belong together, and whether a micro-batch is a replay.

If they do not belong together, rows would be written twice or be missing, unnoticed. So the start is refused, and the
message has the way out:

| found                                                        | because                                            |
|--------------------------------------------------------------|----------------------------------------------------|
| the checkpoint names another pipeline or application         | it was copied                                      |
| the marker is of another query, or there is no checkpoint     | it was deleted or exchanged                        |
| the checkpoint has finished more than the marker says         | the epochs topic was deleted or made again, or the |
|                                                              | checkpoint is a copy                               |
| the declaration differs in what state or results depend on    | old and new would be mixed                         |
| a table or result has more partitions than at the beginning   | keys would be in two partitions                    |
| a result topic has another id than the marker says            | it was deleted and made again                      |
| the marker knows the pipeline's result topic not              | the pipeline writes to another topic than before   |
| a replay ends elsewhere than its marker says, or the newest   | the checkpoint lost a part, or two drivers have    |
| micro-batch of the checkpoint does                           | written it at once                                 |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from stateline.deployment.partition_counts import counts_of, topics_of
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log.interface import TopicInfo
from stateline.model.pipeline import Pipeline, epochs_topic
from stateline.spark.operators.declared import Declared
from stateline.spark.sink.checkpoint import (
    checkpoint_end_offsets,
    checkpoint_query_id,
    claim,
    keep_declaration,
    kept_declaration,
    newest_commit,
)
from stateline.spark.sink.checkpoint_folder import CheckpointFolder
from stateline.spark.sink.declaration import as_read, counted_topics, declaration_of, differences, refuse_grown
from stateline.spark.sink.result_records import topic_names
from stateline.spark.sources.embedded_offsets import Offsets, to_offsets
from stateline_store import DamagedDataError, TopologyError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """One pipeline of one application, and its checkpoint."""

    application_id: str
    pipeline: Pipeline
    checkpoint: CheckpointFolder
    operators: Sequence[Declared] = ()

    def check_start(
        self, marker: EpochMarker | None, topics: Mapping[str, TopicInfo], *, settled: bool = True
    ) -> dict[str, TopicInfo]:
        """Raise `TopologyError` unless the newest marker, the checkpoint and the topics belong together. Claims a
        checkpoint without an owner, and accepts one without a declaration. Returns the topics that must keep their
        partitions, as counted. If not `settled`, an open transaction may have a newer marker, and the checkpoint may be
        ahead of this one."""
        finished = newest_commit(self.checkpoint)
        query_id = checkpoint_query_id(self.checkpoint)
        if query_id is not None or finished is not None:
            claim(self.checkpoint, self.application_id, self.pipeline.name)
        if marker is not None:
            self._check_query(marker, query_id)
            self._check_topics(marker, {name: topics[name].topic_id for name in topic_names(self.pipeline)})
        if settled:
            self._check_finished(marker, -1 if finished is None else finished)
            self._check_newest(marker)
        counted = self._check_declared(topics, in_use=marker is not None or finished is not None or not settled)
        claim(self.checkpoint, self.application_id, self.pipeline.name)
        return counted

    def check_ends(self, batch: EpochMarker, counted: Mapping[str, TopicInfo]) -> None:
        """Raise `PartitionsChangedError` if the micro-batch has read a partition that its topic did not have."""
        ends = (place for text in batch.end_offsets for place in _offsets(text))
        refuse_grown(self.pipeline, counted, as_read(counted, ends), self._start_over)

    def is_replay(self, batch: EpochMarker, markers: Sequence[EpochMarker]) -> bool:
        """Return whether the result topics have the micro-batch. `markers` are the newest, in order. Raises
        `DamagedDataError` if they have another one, and `TopologyError` for another query's."""
        newest = markers[-1] if markers else None
        if newest is not None:
            self._check_query(newest, batch.query_id)
        if newest is None or batch.batch_id > newest.batch_id:
            self._check_finished(newest, batch.batch_id - 1)  # Spark begins one when the one before is finished
            return False
        marker = next((marker for marker in markers if marker.batch_id == batch.batch_id), None)
        if marker is not None:
            self._compare(batch, marker)
        elif _is_beyond(batch.end_offsets, newest.end_offsets):
            raise DamagedDataError(
                f"Micro-batch {batch.batch_id} of pipeline {self.pipeline.name!r} reads up to "
                f"{_shown(batch.end_offsets)}, beyond {_shown(newest.end_offsets)}, where the results end with "
                f"micro-batch {newest.batch_id}: the checkpoint {self.checkpoint} is an old copy, and what it reads "
                f"now would be left out. Restore the newest one; or, to start over, {self._start_over}."
            )
        # Spark replays an earlier batch if a power cut took several commits of the checkpoint.
        _logger.info("pipeline %s: micro-batch %d is written already", self.pipeline.name, batch.batch_id)
        return True

    def _check_query(self, marker: EpochMarker, query_id: str | None) -> None:
        if marker.query_id == query_id:
            return
        found = f"belongs to query {query_id}" if query_id else "is gone"
        raise TopologyError(
            f"Pipeline {self.pipeline.name!r} has written {self._results} up to micro-batch {marker.batch_id} of query "
            f"{marker.query_id}, but the checkpoint {self.checkpoint} {found}: it was deleted or exchanged, or another "
            "driver has written them, with another state.dir. Starting over would write every result a second time. "
            f"Continue with that driver, or restore the checkpoint. Or, to start over, {self._start_over}."
        )

    def _check_finished(self, marker: EpochMarker | None, finished: int) -> None:
        written = -1 if marker is None else marker.batch_id
        if finished <= written:
            return
        says = f"no micro-batch of it is in {self._epochs}" if marker is None else f"{self._epochs} ends with {written}"
        raise TopologyError(
            f"The checkpoint {self.checkpoint} of pipeline {self.pipeline.name!r} has finished micro-batch {finished}, "
            f"but {says}: that topic was deleted or created again, or the checkpoint is a copy of another one, and the "
            "results in between would be missing. Bring back what belongs together; or, to start over, "
            f"{self._start_over}."
        )

    def _check_newest(self, marker: EpochMarker | None) -> None:
        ends = None if marker is None else checkpoint_end_offsets(self.checkpoint, marker.batch_id)
        if marker is not None and ends is not None:
            self._compare(replace(marker, end_offsets=ends), marker)

    def _check_topics(self, marker: EpochMarker, topic_ids: Mapping[str, str]) -> None:
        if self.pipeline.writes.name not in marker.topic_ids:
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has written to {', '.join(marker.topic_ids)} so far, and now writes "
                f"to {self.pipeline.writes.name!r}, which would have no results from before. Give the pipeline another "
                f"name; or, to start over, {self._start_over}."
            )
        for topic, topic_id in topic_ids.items():
            if marker.topic_ids.get(topic, topic_id) != topic_id:
                raise TopologyError(
                    f"The topic {topic!r} was deleted and created again since pipeline {self.pipeline.name!r} wrote "
                    f"micro-batch {marker.batch_id} to it: going on, it would have no results from before. To have "
                    f"them all written again, {self._start_over}."
                )

    def _check_declared(self, topics: Mapping[str, TopicInfo], *, in_use: bool) -> dict[str, TopicInfo]:
        """Keep the present declaration. A checkpoint without micro-batches may get any."""
        now, was = declaration_of(self.pipeline, self.operators), kept_declaration(self.checkpoint)
        before = topics_of(was.topics) if was is not None and in_use else {}
        counted = counted_topics(self.pipeline, topics, before)
        now = replace(now, topics=counts_of(counted))
        if in_use and was is not None and (changes := differences(was, now)):
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has changed since {self.checkpoint} was made: {'; '.join(changes)}. "
                f"Its state there and its results are of the old code. The new code would mix with them. "
                f"{self.after_a_change}"
            )
        refuse_grown(self.pipeline, counted, topics, self._start_over)
        if was != now:
            keep_declaration(self.checkpoint, now)
        return counted

    def _compare(self, batch: EpochMarker, marker: EpochMarker) -> None:
        if batch.end_offsets != marker.end_offsets:
            raise DamagedDataError(
                f"Micro-batch {batch.batch_id} of pipeline {self.pipeline.name!r} now ends at "
                f"{_shown(batch.end_offsets)}, but was written to {self._results} up to "
                f"{_shown(marker.end_offsets)}: the checkpoint {self.checkpoint} lost a part. Restore it; or, to "
                f"start over, {self._start_over}."
            )
        if batch.rows != marker.rows:
            _logger.warning(
                "pipeline %s: micro-batch %d is written with %d rows, and computed again has %s: what its function "
                "looks up besides its input (static topics, the time) has changed. The written rows count.",
                self.pipeline.name, batch.batch_id, marker.rows, batch.rows,
            )  # fmt: skip

    @property
    def after_a_change(self) -> str:
        """Return what to do about a checkpoint that the pipeline's code no longer fits."""
        return (
            "Put the old code back; or give the pipeline and its result topics other names; or, to start over, "
            f"{self._start_over}."
        )

    @property
    def _results(self) -> str:
        return ", ".join(map(repr, topic_names(self.pipeline)))

    @property
    def _epochs(self) -> str:
        return epochs_topic(self.application_id, self.pipeline.name)

    @property
    def _start_over(self) -> str:
        topics = ", ".join(topic_names(self.pipeline))
        return (
            f"delete the checkpoint, where there is one, and the topics {self._epochs}, {topics} (stateline reset "
            f"MODULE:APP --pipeline {self.pipeline.name} --delete-results)"
        )


def _is_beyond(ends: Sequence[str | None], newest: Sequence[str | None]) -> bool:
    """Return whether any partition ends later. Both are offsets as Spark's sources write them."""
    return any(
        offset > reached.get(place, 0)
        for mine, other in zip(ends, newest, strict=False)
        for reached in [_offsets(other)]
        for place, offset in _offsets(mine).items()
    )


def _offsets(text: str | None) -> Offsets:
    return to_offsets(orjson.loads(text)) if text else {}


def _shown(offsets: Sequence[str | None]) -> str:
    return ", ".join(offset or "-" for offset in offsets)
