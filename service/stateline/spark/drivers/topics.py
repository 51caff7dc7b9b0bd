"""Warns at the start of a driver of topics that pipelines read as tables and that lose records."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from stateline.deployment.topics import ensure_topics, report_other_settings
from stateline.log.interface import Admin
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.pipeline import Pipeline
from stateline.model.table_topics import beginning_is_lost
from stateline.model.topology import Topology
from stateline.spark.sink.checkpoint import checkpoint_query_id
from stateline.spark.sink.checkpoint_folder import CheckpointFolder
from stateline_store import TopologyError

_logger = logging.getLogger(__name__)


def missing_topics(
    topology: Topology, pipelines: Iterable[Pipeline], admin: Admin, configured: ConfiguredTopics
) -> dict[str, TopologyError]:
    """Create Stateline's own topics. Return why pipelines cannot start, by name. A pipeline may read the results of
    another one. As long as some succeed, the others are tried again."""
    with suppress(TopologyError):  # it may be about another pipeline, or a store
        ensure_topics(topology, admin, configured=configured)
        return {}
    waiting = [pipeline.name for pipeline in pipelines]
    while True:
        mistakes: dict[str, TopologyError] = {}
        for name in waiting:
            alone = replace(topology, subtopologies=(), stores={}, pipelines={name: topology.pipelines[name]})
            try:
                ensure_topics(alone, admin, configured=configured)
            except TopologyError as error:
                mistakes[name] = error
        if len(mistakes) == len(waiting):
            return mistakes
        waiting = list(mistakes)


def warn_of_tables(topology: Topology, admin: Admin, checkpoints: Iterable[tuple[Pipeline, CheckpointFolder]]) -> None:
    """Log a warning for each topic that a pipeline reads as a table, or writes, and whose settings lose rows, and for
    each table whose beginning is gone but needed. `checkpoints` are the pipelines' own. A `static` topic is always read
    from the beginning, a table only by a pipeline without a checkpoint."""
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
