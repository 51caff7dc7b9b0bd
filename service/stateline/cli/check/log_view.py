"""Read the log as a start would: topics, the group's offsets, and the ends of changelogs. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stateline.cli.check.report import Finding, refused_by
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.stores.cluster_change import refuse_other_cluster
from stateline.deployment.stores.new_stores import lost_changelogs, new_stores
from stateline.deployment.stores.resets import Reset, newest_reset, refuse_unfinished
from stateline.deployment.stores.topology_file import read_cluster, read_counted
from stateline.deployment.topics import refuse_settings, setting_warnings, settings_that_differ
from stateline.log.committed_records import records_between
from stateline.log.interface import Admin, Log, OffsetNote, Record, TopicInfo
from stateline.model.internal_topics import ConfiguredTopics, created_topics
from stateline.model.topology import Topology
from stateline.processing.changelog import position_of_changelog, types_of_changelog
from stateline_store import (
    ConfigurationError,
    Position,
    StateDirectory,
    StatelineError,
    StoreTypes,
    TopicPartition,
)

_TAIL = 64  # offsets at a changelog's end, for its last commit: a record with the types, then markers
_READ_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class LogView:
    """The log's side of a start. `bounds` are (first offset, end) of the application's topics. `committed` and `notes`
    are the group's. `types` are the types in changelogs, or why they cannot be read. `positions` are the newest ones in
    them. `differ` is as in `settings_that_differ`."""

    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    bounds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    notes: Mapping[TopicPartition, OffsetNote] = field(default_factory=dict)
    types: Mapping[TopicPartition, StoreTypes | StatelineError] = field(default_factory=dict)
    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    differ: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    reset: Reset | None = None


def look_at_log(topology: Topology, config: Config) -> LogView | None:
    """Return None if there is no log yet: a start would make one. Raises what the log raises."""
    if not log_exists(config):
        return None
    with closing(configured_log(config, read_only=True)) as log, closing(log.admin()) as admin:
        topics = admin.topics()
        configured = ConfiguredTopics.of(config)
        own = {*topology.topics_known(), *(topic.name for topic in created_topics(topology))}
        own |= {name for name in (config.dead_letter_topic,) if name is not None}
        bounds = admin.bounds([place for name in sorted(own & topics.keys()) for place in topics[name].places])
        sources = {topic.name for subtopology in topology.subtopologies for topic in subtopology.sources}
        read = [place for place in bounds if place.topic in sources]
        reset = newest_reset(log, topology.application_id)
        committed = admin.committed_with_notes(topology.application_id, read) if read else {}
        lost = lost_changelogs(topology, topics, committed, bounds, config.backup_location)
        types, positions = _said_by_changelogs(log, topology, bounds)
        return LogView(
            topics,
            bounds,
            {place: at for place, (at, _) in committed.items()},
            {place: note for place, (_, note) in committed.items()},
            types,
            positions,
            settings_that_differ(topology, admin, configured),
            [
                *refused_by(
                    lambda: refuse_unfinished(reset, topology.application_id, topology.target),
                    lambda: refuse_settings(topology, admin, topics, configured),
                    lambda: _refuse_other_cluster(topology, config, admin),
                ),
                *(Finding("refused", why) for why in dict.fromkeys(lost.values())),
                *_warnings(topology, admin, topics, reset, configured, lost),
            ],
            reset,
        )


def _warnings(
    topology: Topology,
    admin: Admin,
    topics: Mapping[str, TopicInfo],
    reset: Reset | None,
    configured: ConfiguredTopics,
    lost: Mapping[str, str],
) -> list[Finding]:
    missing = {topic.name for topic in created_topics(topology)} - topics.keys()
    missing -= {topology.stores[name].changelog(topology.application_id) or "" for name in lost}
    try:
        of_settings = setting_warnings(topology, admin, configured=configured)
    except ConfigurationError as error:
        of_settings = [f"Whether topics have the settings that Stateline gives them is not known: {error}"]
    return [Finding("warning", said) for said in (*of_settings, *new_stores(topology, missing, admin, reset))]


def _refuse_other_cluster(topology: Topology, config: Config, admin: Admin) -> None:
    application = config.state_dir / config.application_id
    if not application.is_dir():
        return
    try:
        counted = read_counted(application)
    except StatelineError:  # a finding of `disk_view`
        return
    directory, before = StateDirectory(config.state_dir, config.application_id), read_cluster(application)
    refuse_other_cluster(directory, topology.target, config.bootstrap_servers, before, counted, admin)


def _said_by_changelogs(
    log: Log, topology: Topology, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[dict[TopicPartition, StoreTypes | StatelineError], dict[TopicPartition, Position]]:
    """The types and the Position of each changelog with records at its end."""
    logged = [d for d in topology.stores.values() if d.source is None and d.kind != "custom"]
    names = {store.changelog(topology.application_id) for store in logged}
    tails = {p: max(first, end - _TAIL) for p, (first, end) in bounds.items() if p.topic in names and end > first}
    found: dict[TopicPartition, StoreTypes | StatelineError] = {}
    positions: dict[TopicPartition, Position] = {}
    for place, records in _read(log, tails).items():
        try:
            types, positions[place] = types_of_changelog(records), position_of_changelog(records)
        except StatelineError as error:
            found[place] = error
        else:
            if types is not None:
                found[place] = types
    return found, positions


def _read(log: Log, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {place: [] for place in begins}
    if not begins:
        return found
    with closing(log.admin()) as admin:
        bounds = {place: (begins[place], end) for place, end in admin.committed_ends(begins).items()}
    for record in records_between(log, bounds, "try again", silence_s=_READ_TIMEOUT_S):
        found[TopicPartition(record.topic, record.partition)].append(record)
    return found
