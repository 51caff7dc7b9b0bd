"""What a driver says at its start of the topics that its pipelines read as tables, when these lose records."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stateline.deployment.topics import report_other_settings
from stateline.log.interface import Admin
from stateline.model.pipeline import Pipeline
from stateline.model.table_topics import beginning_is_lost
from stateline.model.topology import Topology
from stateline.spark.sink.checkpoint import checkpoint_query_id
from stateline.spark.sink.checkpoint_folder import CheckpointFolder

_logger = logging.getLogger(__name__)


def warn_of_tables(topology: Topology, admin: Admin, checkpoints: Iterable[tuple[Pipeline, CheckpointFolder]]) -> None:
    """Log a warning for each topic that one of these pipelines reads as a table, or writes, and whose settings let it
    lose rows; and for each table that is read from the beginning, when that is gone. `checkpoints`: where theirs are.

    A `static` topic is always read from the beginning; `tables` are by a pipeline without a checkpoint.
    """
    from_beginning: set[str] = set()
    named: set[str] = set()
    for pipeline, checkpoint in checkpoints:
        is_new = checkpoint_query_id(checkpoint) is None
        from_beginning |= {topic.name for topic in (*pipeline.static, *(pipeline.tables if is_new else ()))}
        named |= {topic.name for topic in (*pipeline.static, *pipeline.tables, *pipeline.results)}
    report_other_settings(topology, admin, of=named)
    there = admin.topics()
    wanted = [place for name in sorted(from_beginning & there.keys()) for place in there[name].places]
    firsts = {partition: first for partition, (first, _) in admin.bounds(wanted).items() if first > 0}
    for name in sorted({partition.topic for partition in firsts}):
        cut = {partition: first for partition, first in firsts.items() if partition.topic == name}
        _logger.warning("%s", beginning_is_lost(name, cut))
