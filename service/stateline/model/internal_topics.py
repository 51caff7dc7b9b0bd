"""List the topics of an application: those that Stateline creates, and those that the user must create. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stateline.config.settings import Config
from stateline.model.store_definition import DAY_MS
from stateline.model.table_topics import table_settings
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.serde.subscription import AnswerSerde, SubscriptionSerde
from stateline_store import ConfigurationError

# For a pipeline's result without a table: every row counts. The broker decides the retention.
_STREAM_SETTINGS = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
_REPARTITION_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": "52428800",  # as in Kafka Streams: processed records are freed segment by segment
    "message.timestamp.type": "CreateTime",
}


@dataclass(frozen=True, slots=True)
class ConfiguredTopics:
    """An application's settings for its changelogs and repartition topics. `settings` are `topic.*`.
    `window_additional_ms` is windowstore.changelog.additional.retention.ms."""

    settings: Mapping[str, str] = field(default_factory=dict)
    window_additional_ms: int = DAY_MS

    @classmethod
    def of(cls, config: Config) -> ConfiguredTopics:
        """Return the topics' settings of a configuration."""
        return cls(config.topic, config.windowstore_changelog_additional_retention_ms)


UNCONFIGURED = ConfiguredTopics()


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that Stateline creates. Without `partitions`, it gets as many as the topics of `like` have. `role` says
    its purpose, for messages."""

    name: str
    role: str
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: int | None = None
    like: tuple[str, ...] = ()


def created_topics(topology: Topology, configured: ConfiguredTopics = UNCONFIGURED) -> tuple[InternalTopic, ...]:
    """Return the topics that Stateline creates if they are missing: results of pipelines, repartition topics,
    changelogs.

    A topic comes after those of its `like`. `configured` applies to repartition topics and changelogs. It does not
    apply to results, because those belong to the user, too."""
    found = [
        *_results(topology),
        *_repartition_topics(topology, configured),
        *_changelogs(topology, configured),
    ]
    return tuple({topic.name: topic for topic in found}.values())


def refuse_deleting(topology: Topology, configured: ConfiguredTopics) -> None:
    """Raise `ConfigurationError` if `topic.cleanup.policy` would delete rows from changelogs that stores still have."""
    for subtopology in topology.subtopologies:
        for store in subtopology.stores:
            is_kept = store.source is None and store.logged
            if is_kept and (policy := store.deleting_policy(configured.settings)) is not None:
                raise ConfigurationError(
                    f"topic.cleanup.policy={policy!r} would delete rows from the changelog of store {store.name!r} "
                    "that the store still has. Leave it out, or give 'compact', or 'compact,delete' with a "
                    "topic.retention.ms."
                )


def required_topics(topology: Topology) -> tuple[str, ...]:
    """Return the topics that the user must create: sources, outputs of processors, inputs of pipelines, topics of
    global tables."""
    topics = [t for s in topology.subtopologies for t in s.sources]
    topics += [t for s in topology.subtopologies for p in s.processors for t in p.forwards]
    topics += [t for p in topology.pipelines.values() for t in p.inputs]
    topics += [d.source for d in topology.global_tables.values() if d.source is not None]
    created = {topic.name for topic in created_topics(topology)}
    return tuple(dict.fromkeys(t.name for t in topics if t.name not in created))


def _results(topology: Topology) -> Iterator[InternalTopic]:
    tables = table_settings(topology)
    for pipeline in topology.pipelines.values():
        like = tuple(t.name for t in (*pipeline.reads, *pipeline.tables))
        for topic in pipeline.results:
            role = f"result of pipeline {pipeline.name!r}"
            yield InternalTopic(topic.name, role, tables.get(topic.name, _STREAM_SETTINGS), topic.partitions, like)


def _repartition_topics(topology: Topology, configured: ConfiguredTopics) -> Iterator[InternalTopic]:
    """Yield the repartition topics. Each is `like` the topics that it is joined with, else like those of its
    records. The topics of joins by foreign key come last: they are always like the table that they lead to."""
    for is_foreign in (False, True):
        yield from _of_kind(topology, configured, is_foreign=is_foreign)


def _of_kind(topology: Topology, configured: ConfiguredTopics, *, is_foreign: bool) -> Iterator[InternalTopic]:
    for subtopology in topology.subtopologies:
        sources = tuple(t.name for t in subtopology.sources)
        internal = [t for p in subtopology.processors for t in p.forwards if t.internal]
        for topic in internal:
            if _is_foreign(topic) != is_foreign:
                continue
            like = _beside(topology, topic) or sources
            settings = {**_REPARTITION_SETTINGS, **configured.settings}
            yield InternalTopic(topic.name, "repartition topic", settings, topic.partitions, like)


def _is_foreign(topic: Topic) -> bool:
    return isinstance(topic.value, SubscriptionSerde | AnswerSerde)


def _beside(topology: Topology, topic: Topic) -> tuple[str, ...]:
    """Return the user's topics that are processed together with this one, such as the other side of a join. A topic of
    a join by foreign key may have repartition topics there."""
    beside = [t for s in topology.subtopologies if topic in s.sources for t in s.sources]
    users = tuple(t.name for t in beside if not t.internal)
    return users or tuple(t.name for t in beside if _is_foreign(topic) and not _is_foreign(t))


def _changelogs(topology: Topology, configured: ConfiguredTopics) -> Iterator[InternalTopic]:
    for subtopology in topology.subtopologies:
        like = tuple(t.name for t in subtopology.sources)
        for store in subtopology.stores:
            if store.source is None and (name := store.changelog(topology.application_id)):
                settings = store.changelog_settings(configured.settings, configured.window_additional_ms)
                yield InternalTopic(name, f"changelog of store {store.name!r}", settings, None, like)
