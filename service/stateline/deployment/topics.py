"""Create Stateline's own topics, with Kafka Streams' names and settings, and check the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from stateline.deployment.partition_counts import refuse_grown, refuse_other_changelogs
from stateline.log.interface import Admin, NewTopic, TopicInfo
from stateline.model.external_stores import settings_of_changelog
from stateline.model.internal_topics import (
    UNCONFIGURED,
    ConfiguredTopics,
    InternalTopic,
    created_topics,
    refuse_deleting,
    required_topics,
)
from stateline.model.table_topics import loses_rows, table_settings
from stateline.model.topology import Topology
from stateline_store import ConfigurationError, InvalidArgumentError, TopologyError

logger = logging.getLogger(__name__)


def ensure_topics(
    topology: Topology,
    admin: Admin,
    *,
    also_required: Iterable[str] = (),
    counted: Mapping[str, TopicInfo] = MappingProxyType({}),
    configured: ConfiguredTopics = UNCONFIGURED,
    only: Container[str] | None = None,
) -> dict[str, int]:
    """Create Stateline's missing topics, or `only` these of them. Returns the partition count of every topic of the
    application.

    `also_required` is the dead-letter topic. `counted` are topics as stores were made of them. `configured` are the
    settings for created topics. Several processes may call this at once.

    Raises `TopologyError` with the user's missing topics, and for internal topics whose partition count does not fit.
    Raises `PartitionsChangedError` if a topic has other partitions than its stores were made for,
    `InvalidArgumentError` if the log refuses settings, and `ConfigurationError` like `refuse_deleting`.
    """
    refuse_deleting(topology, configured)
    found = admin.topics()
    for error in refusals(topology, found, also_required=also_required, counted=counted):
        raise error
    existing = {name: info.partitions for name, info in found.items()}
    created = created_topics(topology, configured)
    wanted = wanted_partitions(created, existing)
    missing_own = [t for t in created if t.name not in existing and (only is None or t.name in only)]
    if missing_own:
        _create(admin, missing_own, wanted)
        logger.info("Created topics %s", ", ".join(f"{t.name} ({wanted[t.name]})" for t in missing_own))
    return {**wanted, **existing}


def refusals(
    topology: Topology,
    found: Mapping[str, TopicInfo],
    *,
    also_required: Iterable[str] = (),
    counted: Mapping[str, TopicInfo] = MappingProxyType({}),
) -> Iterator[TopologyError]:
    """Each error that `ensure_topics` raises with these topics. While topics are missing, the partitions of others are
    unknown. Pure."""
    existing = {name: info.partitions for name, info in found.items()}
    missing = [
        *_missing_changelog(topology.external_topics(), existing),
        *_missing_topics(topology, also_required, existing),
    ]
    yield from missing
    yield from _raised(lambda: refuse_grown(topology, counted, found))
    if not missing:
        created = created_topics(topology)
        yield from _raised(lambda: refuse_other_changelogs(topology, existing, wanted_partitions(created, existing)))
        yield from _other_repartitions(created, existing)


def _raised(check: Callable[[], None]) -> Iterator[TopologyError]:
    try:
        check()
    except TopologyError as error:
        yield error


def refuse_settings(topology: Topology, admin: Admin, existing: Container[str], configured: ConfiguredTopics) -> None:
    """Raise `InvalidArgumentError` if the log would refuse settings of topics to create. Creates nothing."""
    missing = [topic for topic in created_topics(topology, configured) if topic.name not in existing]
    _create(admin, missing, {topic.name: 1 for topic in missing}, validate_only=True)


def _create(
    admin: Admin, topics: Sequence[InternalTopic], partitions: Mapping[str, int], *, validate_only: bool = False
) -> None:
    new = [NewTopic(topic.name, partitions[topic.name], topic.settings) for topic in topics]
    try:
        admin.create_topics(new, validate_only=validate_only)
    except InvalidArgumentError:
        for topic, one in zip(topics, new, strict=True):  # find the topic whose settings are refused
            try:
                admin.create_topics([one], validate_only=validate_only)
            except InvalidArgumentError as error:
                settings = ", ".join(f"{name}={value}" for name, value in topic.settings.items())
                raise InvalidArgumentError(
                    f"The {topic.role} cannot be created with {settings}: {error} Mend what says so: "
                    "with_logging(…), changelog={…}, or a setting topic.*."
                ) from error


def _missing_changelog(external: Mapping[str, str], existing: Iterable[str]) -> Iterator[TopologyError]:
    """The first of another application's changelogs that is missing."""
    names = set(existing)
    for name, owner in external.items():
        if name not in names:
            there = ", ".join(sorted(n for n in names if n.startswith(f"{owner}-") and n.endswith("-changelog")))
            yield TopologyError(
                f"There is no topic {name}: the Kafka Streams application {owner!r} creates it when it starts, "
                "Stateline does not. Start the application first; if it runs, look at `of` and at the store's name. "
                f"Changelogs of {owner!r} that there are: {there or 'none'}."
            )
            return


def _missing_topics(
    topology: Topology, dead_letters: Iterable[str], existing: Container[str]
) -> Iterator[TopologyError]:
    required, read = required_topics(topology), topology.topics_read()
    kinds = {
        "source topic": {name for name in required if name in read},
        "output topic": {name for name in required if name not in read},
        "dead-letter topic": set(dead_letters).difference(required),
    }
    parts = []
    for kind, names in kinds.items():
        if absent := sorted(name for name in names if name not in existing):
            setting = " (errors.dead.letter.queue.topic.name)" if kind == "dead-letter topic" else ""
            parts.append(f"{kind}{'s' if len(absent) > 1 else ''}: {', '.join(absent)}{setting}")
    if parts:  # such as "source topics: a, b; dead-letter topic: c (…)"
        yield TopologyError(
            f"Missing {'; '.join(parts)}. Create what is missing first (`stateline topics … --create`): Stateline "
            "creates only its own topics."
        )


_IS_OTHER = "Topic %s has other settings than Stateline gives it, and keeps them: %s. To change them: %s"
_LOSES_ROWS = (
    "Topic %s deletes old records (%s), but a table is made from it. If the table is rebuilt, for example after the "
    "loss of a disk, it lacks the deleted records. Let the topic keep them: %s"
)
_DOES_NOT_FIT = (
    "Topic %s has other settings than Kafka Streams gives the changelog of such a store as is declared: %s. Unless "
    "they were set by hand, the store is of another kind there, or has another retention."
)


def report_other_settings(
    topology: Topology, admin: Admin, *, of: Container[str] | None = None, configured: ConfiguredTopics = UNCONFIGURED
) -> None:
    """Log each of `setting_warnings`, of the topics `of` alone if given. Changes nothing, because the settings may be
    meant. If the login may not read settings, it warns of none."""
    try:
        for warning in setting_warnings(topology, admin, of=of, configured=configured):
            logger.warning("%s", warning)
    except ConfigurationError as error:
        logger.info("Whether topics have the settings that Stateline gives them is not known: %s", error)


def setting_warnings(
    topology: Topology, admin: Admin, *, of: Container[str] | None = None, configured: ConfiguredTopics = UNCONFIGURED
) -> list[str]:
    """Warn of topics with unexpected settings, of the topics `of` alone if given: Stateline's own with other settings
    than at creation, the user's that delete what a table needs, and Kafka Streams changelogs that do not fit their
    declared store.

    It makes one request. Raises `ConfigurationError` if the login may not read settings.
    """
    tables = table_settings(topology)
    wanted = {topic.name: topic.settings for topic in created_topics(topology, configured)}
    external = {d.source.name: d for d in topology.stores.values() if d.source is not None and d.external is not None}
    found = admin.topic_settings([name for name in {**wanted, **external, **tables} if of is None or name in of])
    said: list[str] = []
    for name, settings in found.items():
        if name not in wanted and name not in external:
            if loses_rows(topology, name, settings):
                said.append(_LOSES_ROWS % (name, _age(settings), alter_command(name, tables[name])))
            continue
        expected = settings_of_changelog(external[name]) if name in external else wanted[name]
        if others := other_settings(expected, settings):
            listed = "; ".join(f"{each}: found {there}, wanted {ours}" for each, (there, ours) in others.items())
            if name in external:
                said.append(_DOES_NOT_FIT % (name, listed))
            else:
                command = alter_command(name, {each: expected[each] for each in others})
                said.append(_IS_OTHER % (name, listed, command))
    return said


def settings_that_differ(
    topology: Topology, admin: Admin, configured: ConfiguredTopics
) -> dict[str, dict[str, tuple[str, str]]]:
    """Topic → setting → (found, wanted) of Stateline's own topics. Empty if the login may not read settings."""
    wanted = {topic.name: topic.settings for topic in created_topics(topology, configured)}
    try:
        found = admin.topic_settings(wanted)
    except ConfigurationError:
        return {}
    differ = {name: other_settings(wanted[name], settings) for name, settings in found.items()}
    return {name: others for name, others in differ.items() if others}


def alter_command(topic: str, settings: Mapping[str, str]) -> str:
    """Kafka's command that sets these settings."""
    listed = ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in settings.items())
    return (
        "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name "
        f"{topic} --add-config {listed}"
    )


def _age(settings: Mapping[str, str]) -> str:
    names = ("cleanup.policy", "retention.ms", "retention.bytes")
    return ", ".join(f"{name}={settings[name]}" for name in names if settings.get(name, "-1") != "-1")


def other_settings(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Setting → (found, wanted) of differing settings. Pure."""
    there = {name: found.get(name, "nothing") for name in wanted}
    return {
        name: (there[name], value)
        for name, value in wanted.items()
        if {*there[name].replace(" ", "").split(",")} != {*value.split(",")}
    }


def wanted_partitions(topics: Iterable[InternalTopic], existing: Mapping[str, int]) -> dict[str, int]:
    """Partitions of each created topic: its own number, or that of the largest topic it is like.

    A topic may be like a created one: the readers of a repartition topic have changelogs.
    """
    waiting = list(topics)
    counts: dict[str, int] = {}
    while waiting:
        known = {**counts, **existing}
        ready = [t for t in waiting if t.partitions or all(name in known for name in t.like)]
        if not ready:
            names = ", ".join(sorted(t.name for t in waiting))
            raise TopologyError(f"The partition counts of {names} depend on each other: give one of them `partitions`.")
        for topic in ready:
            counts[topic.name] = topic.partitions or max(known[name] for name in topic.like)
        waiting = [t for t in waiting if t.name not in counts]
    return counts


def subtopology_partitions(topology: Topology, counts: Mapping[str, int]) -> dict[int, int]:
    """Subtopology → its number of tasks. Raises `TopologyError` if its source topics have different counts."""
    partitions: dict[int, int] = {}
    for subtopology in topology.subtopologies:
        found = {topic.name: counts[topic.name] for topic in subtopology.sources}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in found.items())
            raise TopologyError(
                f"Topics that are processed together need equal partition counts, but {listed}: send one through a "
                'topic of as many as the other, with .repartition("a-name", partitions=…) or app.repartition.'
            )
        partitions[subtopology.ordinal] = next(iter(found.values()))
    return partitions


def _other_repartitions(created: Iterable[InternalTopic], existing: Mapping[str, int]) -> Iterator[TopologyError]:
    for topic in created:
        found, declared = existing.get(topic.name), topic.partitions
        if topic.name.endswith("-repartition") and declared is not None and found not in (None, declared):
            yield TopologyError(
                f"Repartition topic {topic.name} has {found} partitions, and {declared} are declared: declare as many "
                "as it has, or start under a new application.id."
            )
