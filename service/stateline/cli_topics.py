"""`stateline topics`: what an application's topics are for, and which of them are missing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from stateline.app import App
from stateline.cli_table import Row, as_text
from stateline.config import Config
from stateline.configured_log import configured_log, log_exists
from stateline.log.interface import Admin, NewTopic, TopicInfo
from stateline.topology import Topology
from stateline_store import InvalidArgumentError, TopicPartition

DEFAULT_PARTITIONS = 4


def topics(app: App, config: Config, *, create: bool, partitions: int | None, as_json: bool) -> str:
    """The listing as text, after creating missing source topics if that is wanted.

    Raises `InvalidArgumentError`, and creates nothing, when one that exists has other than the wanted `partitions`.
    """
    roles = topic_roles(app.topology(), config.dead_letter_topic)
    if not create and not log_exists(config):
        return as_text(topic_rows(roles, {}, {}), as_json=as_json)  # a listing makes no file
    with closing(configured_log(config, read_only=not create)) as log, closing(log.admin()) as admin:
        existing = admin.topics()
        if create:
            if partitions is not None:
                refuse_other_counts(roles, existing, partitions)
            missing = missing_of_the_users(roles, existing)
            admin.create_topics(NewTopic(name, partitions or DEFAULT_PARTITIONS) for name in missing)
            existing = admin.topics()
        counts = {name: _records(admin, existing[name]) for name in roles if name in existing}
    return as_text(topic_rows(roles, existing, counts), as_json=as_json)


USERS_ROLES = ("source", "output", "dead letter")  # Stateline creates those of the other roles


def topic_roles(topology: Topology, dead_letter_topic: str | None) -> dict[str, str]:
    """Topic → what it is for: source, output, dead letter (the user's), result, repartition, changelog."""
    changelogs = {store.changelog(topology.application_id) for store in topology.stores.values()}
    results = {pipeline.writes.name for pipeline in topology.pipelines.values()}
    read = {topic.name for subtopology in topology.subtopologies for topic in subtopology.sources}
    for pipeline in topology.pipelines.values():
        read |= {topic.name for topic in (*pipeline.reads, *pipeline.static)}
    roles = {name: "source" if name in read else "output" for name in topology.required_topics()}
    if dead_letter_topic is not None:
        roles.setdefault(dead_letter_topic, "dead letter")
    for topic in topology.created_topics():
        role = "result" if topic.name in results else "repartition"
        roles[topic.name] = "changelog" if topic.name in changelogs - results - read else role
    return roles


def missing_of_the_users(roles: Mapping[str, str], existing: Mapping[str, TopicInfo]) -> list[str]:
    """The topics that the user has to create and has not."""
    return [name for name, role in roles.items() if role in USERS_ROLES and name not in existing]


def refuse_other_counts(roles: Mapping[str, str], existing: Mapping[str, TopicInfo], partitions: int) -> None:
    """Raise for topics of the user's that exist with other than this many partitions."""
    counts = {name: existing[name].partitions for name in roles if roles[name] in USERS_ROLES and name in existing}
    others = [f"{name} has {count}" for name, count in counts.items() if count != partitions]
    if others:
        raise InvalidArgumentError(
            f"--partitions {partitions} is for topics that are created, and some exist with another number: "
            f"{', '.join(others)}. Nothing was created: leave out --partitions, give theirs, or delete them first."
        )


def topic_rows(roles: Mapping[str, str], existing: Mapping[str, TopicInfo], counts: Mapping[str, int]) -> list[Row]:
    """One row per topic; of a missing one partitions and records are None."""
    return [
        {
            "topic": name,
            "role": role,
            "partitions": existing[name].partitions if name in existing else None,
            "records": counts.get(name),
            "state": _state(role, name in existing),
        }
        for name, role in roles.items()
    ]


def _state(role: str, exists: bool) -> str:
    if exists:
        return "exists"
    return "MISSING: create it" if role in USERS_ROLES else "created at the first start"


def _records(admin: Admin, topic: TopicInfo) -> int:
    """Offsets from the first kept to the end: the records, and what compaction and transactions left out."""
    marks = (admin.watermarks(TopicPartition(topic.name, p)) for p in range(topic.partitions))
    return sum(end - first for first, end in marks)
