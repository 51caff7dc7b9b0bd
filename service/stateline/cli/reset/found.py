"""Read what an application has before a reset: topics, offsets, and local state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateline.cli.reset.scope import Scope
from stateline.cli.reset.where_to import WhereTo
from stateline.config.settings import Config
from stateline.deployment.pipelines.checkpoint_location import is_url
from stateline.deployment.pipelines.status import pipelines_directory
from stateline.deployment.stores.discarding import has_checkpoint, stored
from stateline.deployment.stores.resets import Stale
from stateline.log.interface import Admin, TopicInfo
from stateline.model.topology import Topology
from stateline_store import StateDirectory, TopicPartition

Bounds = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ResetFacts:
    """`bounds` are (first offset, end) of the topics in scope, `committed` the group's offsets, `at_time` the first
    offsets of the requested time. `stored` lists local stores. `checkpoints` has those that exist, and all at a URL
    without a look."""

    topics: Mapping[str, TopicInfo]
    bounds: Bounds
    committed: Mapping[TopicPartition, int]
    at_time: Mapping[TopicPartition, int]
    stored: tuple[str, ...]
    checkpoints: Mapping[str, str]

    @property
    def with_records(self) -> set[str]:
        """Topics that have records."""
        return {partition.topic for partition, (first, end) in self.bounds.items() if end > first}

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, none if it does not exist."""
        info = self.topics.get(topic)
        return [] if info is None else info.places


def look(topology: Topology, scope: Scope, to: WhereTo, config: Config, admin: Admin) -> ResetFacts:
    """Read the log and the directory. Raises what the log raises, and `RetryLaterError` with what cannot be read."""
    topics = admin.topics()
    sources = _partitions({t.name for s in scope.replayed for t in s.sources}, topics)
    results = _partitions({t.name for p in scope.pipelines for t in (*p.results, *p.inputs)}, topics)
    at_time = {each: admin.offset_at(each, to.value) for each in sources} if to.kind == "time" else {}
    committed = admin.committed(topology.application_id, sources) if sources else {}
    directory = StateDirectory(config.state_dir, config.application_id)
    stores = frozenset(store.name for store in scope.stores)
    stale = Stale(scope.everything, stores, frozenset(pipeline.name for pipeline in scope.pipelines))
    return ResetFacts(
        topics,
        admin.bounds(dict.fromkeys([*sources, *results])),
        committed,
        at_time,
        tuple(stored(directory, stale)),
        {name: place for p in scope.pipelines if (place := _checkpoint(config, (name := p.name))) is not None},
    )


def checkpoint_place(config: Config, pipeline: str) -> str:
    """A pipeline's directory with its checkpoint, as a path or a URL."""
    if config.pipeline_checkpoint_location is not None and is_url(config.pipeline_checkpoint_location):
        return f"{config.pipeline_checkpoint_location}/{config.application_id}/pipelines/{pipeline}"
    root = config.pipeline_checkpoint_location or config.state_dir
    return str(pipelines_directory(Path(root).resolve(), config.application_id) / pipeline)


def _checkpoint(config: Config, pipeline: str) -> str | None:
    place = checkpoint_place(config, pipeline)
    return f"{place}/checkpoint" if is_url(place) or has_checkpoint(Path(place)) else None


def _partitions(names: Iterable[str], topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    return [place for name in sorted(names) if name in topics for place in topics[name].places]


def others_of(application_id: str, topics: Collection[str], known: Collection[str]) -> list[str]:
    """Undeclared topics with names like the application's own: of renamed stores, or of another application whose id
    begins with this one's."""
    suffixes = ("-changelog", "-repartition", "-epochs")
    return sorted(t for t in topics if t.startswith(f"{application_id}-") and t.endswith(suffixes) and t not in known)
