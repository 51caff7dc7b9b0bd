"""`stateline topics`: list an application's topics with their roles, and the missing ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

from stateline.cli.table import Row, as_text
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.topics import report_other_settings, settings_that_differ
from stateline.dsl.app import App
from stateline.log.committed_records import records_between
from stateline.log.interface import Admin, Log, NewTopic, TopicInfo
from stateline.model.internal_topics import ConfiguredTopics, created_topics, required_topics
from stateline.model.table_topics import kept_for_ever, table_settings
from stateline.model.topology import Topology
from stateline_store import InvalidArgumentError, TopicPartition

logger = logging.getLogger(__name__)

DEFAULT_PARTITIONS = 4


def topics(
    app: App, config: Config, *, create: bool, partitions: int | None, count: bool = False, as_json: bool
) -> str:
    """Create missing source topics if `create`, then return the listing. `count` reads each topic completely.

    Raises `InvalidArgumentError` before it creates anything if an existing topic has another number of `partitions`,
    and `LogUnavailableError` if records to count do not arrive.
    """
    topology, configured = app.topology(), ConfiguredTopics.of(config)
    roles = topic_roles(topology, config.dead_letter_topic)
    if not create and not log_exists(config):
        return as_text(
            topic_rows(roles, {}, {}, {} if count else None), as_json=as_json
        )  # a listing creates no log file
    with closing(configured_log(config, read_only=not create)) as log, closing(log.admin()) as admin:
        existing, made = admin.topics(), list[str]()
        if create:
            if partitions is not None:
                refuse_other_counts(roles, existing, partitions)
            report_other_settings(topology, admin, configured=configured)
            made = missing_of_the_users(roles, existing)
            create_missing(topology, admin, made, partitions or DEFAULT_PARTITIONS)
            existing = admin.topics()
        differ = settings_that_differ(topology, admin, configured)
        marks = {name: dict(offset_bounds(admin, existing[name])) for name in roles if name in existing}
        counts = {name: _records(log, marks[name]) for name in marks} if count else None
    offsets = {name: sum(end - first for first, end in bounds.values()) for name, bounds in marks.items()}
    return as_text(topic_rows(roles, existing, offsets, counts, differ, made), as_json=as_json)


USERS_ROLES = ("source", "output", "dead letter")  # Stateline creates topics of other roles


def topic_roles(topology: Topology, dead_letter_topic: str | None) -> dict[str, str]:
    """Topic → its role: source, output or dead letter (the user's); result, repartition or changelog (Stateline's);
    external (the changelog of a Kafka Streams application)."""
    changelogs = {store.changelog(topology.application_id) for store in topology.stores.values()}
    results = {topic.name for p in topology.pipelines.values() for topic in p.results}
    read = topology.topics_read().keys()
    roles = {name: "source" if name in read else "output" for name in required_topics(topology)}
    roles |= dict.fromkeys(topology.external_topics(), "external")
    if dead_letter_topic is not None:
        roles.setdefault(dead_letter_topic, "dead letter")
    for topic in created_topics(topology):
        role = "result" if topic.name in results else "repartition"
        roles[topic.name] = "changelog" if topic.name in changelogs - results - read else role
    return roles


def missing_of_the_users(roles: Mapping[str, str], existing: Mapping[str, TopicInfo]) -> list[str]:
    return [name for name, role in roles.items() if role in USERS_ROLES and name not in existing]


def create_missing(topology: Topology, admin: Admin, names: Sequence[str], partitions: int) -> None:
    """Create these topics, with the settings that tables need. Log those that keep all records for ever."""
    settings = table_settings(topology)
    admin.create_topics(NewTopic(name, partitions, settings.get(name, {})) for name in names)
    for name in kept_for_ever(topology):
        if name in names:
            logger.info(
                "Topic %s is read as a table and as a stream: it keeps all records for ever (retention.ms=-1)", name
            )


def refuse_other_counts(roles: Mapping[str, str], existing: Mapping[str, TopicInfo], partitions: int) -> None:
    counts = {name: existing[name].partitions for name in roles if roles[name] in USERS_ROLES and name in existing}
    others = [f"{name} has {count}" for name, count in counts.items() if count != partitions]
    if others:
        raise InvalidArgumentError(
            f"--partitions {partitions} is for topics that are created, and some exist with another number: "
            f"{', '.join(others)}. Nothing was created: leave out --partitions, give theirs, or delete them first."
        )


def topic_rows(
    roles: Mapping[str, str],
    existing: Mapping[str, TopicInfo],
    offsets: Mapping[str, int],
    counts: Mapping[str, int] | None = None,
    differ: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType({}),
    created: Sequence[str] = (),
) -> list[Row]:
    """One row per topic. A missing topic has None for partitions, offsets and records. Without `counts` no row has
    records. `differ`: topic → setting → (found, wanted). `created` are the topics that this call has created."""
    return [
        {
            "topic": name,
            "role": role,
            "partitions": existing[name].partitions if name in existing else None,
            "offsets": offsets.get(name),
            **({} if counts is None else {"records": counts.get(name)}),
            "state": _state(role, name in existing, differ.get(name, {}), "created" if name in created else "exists"),
        }
        for name, role in roles.items()
    ]


def _state(role: str, exists: bool, differs: Mapping[str, tuple[str, str]], word: str) -> str:
    if exists:
        others = "; ".join(f"{name} is {found}, declared {wanted}" for name, (found, wanted) in differs.items())
        return f"{word}: {others}" if others else word
    if role == "external":
        return "MISSING: its Kafka Streams application creates it"
    return "MISSING: create it" if role in USERS_ROLES else "created at the first start"


def offset_bounds(admin: Admin, topic: TopicInfo) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
    """Yield the first offset and the end of each partition. Between them are records, and gaps that compaction and
    transactions leave."""
    for place in topic.places:
        yield place, admin.watermarks(place)


def _records(log: Log, marks: Mapping[TopicPartition, tuple[int, int]]) -> int:
    bounds = {place: (first, end) for place, (first, end) in marks.items() if first < end}
    found = records_between(log, bounds, "count again when the log answers")
    return sum(record.offset < bounds[TopicPartition(record.topic, record.partition)][1] for record in found)
