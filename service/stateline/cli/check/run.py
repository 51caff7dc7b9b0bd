"""Check a start: read the disk and the log, and compare both with the application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from stateline.cli.check.backup_view import look_at_backups
from stateline.cli.check.disk_view import DiskView, look_at_disk
from stateline.cli.check.log_view import LogView, look_at_log
from stateline.cli.check.report import Finding, Report, once_per_store, refused_by
from stateline.cli.check.restores import missed_findings, store_starts
from stateline.cli.reset.running import is_served_here
from stateline.cli.topics.listing import topic_roles, topic_rows
from stateline.config.directory import check_writable
from stateline.config.extras import need_extra
from stateline.config.settings import Config
from stateline.deployment.topics import refusals, subtopology_partitions, wanted_partitions
from stateline.dsl.app import App
from stateline.log.interface import TopicInfo
from stateline.model.graph import graph_of
from stateline.model.internal_topics import ConfiguredTopics, created_topics, refuse_deleting
from stateline.model.registries import check_registries
from stateline.model.topology import Topology
from stateline.model.unnamed_stores import check_names, taken_over
from stateline.processing.failures import FailureHandler
from stateline.server.listeners import check_files, check_host, http_listener
from stateline_store import CallerError, StatelineError, TopologyError


def check(app: App, config: Config) -> Report:
    """Collect everything that is known of a start here. Reads only. Raises `TopologyError` if the application cannot
    run as declared on any machine."""
    topology = app.topology()
    disk = look_at_disk(topology, config)
    log, of_log = _asked(topology, config)
    topics: Mapping[str, TopicInfo] = {} if log is None else log.topics
    partitions: dict[int, int] = {}
    if log is not None:
        partitions, of_counts = _partitions(topology, topics)
        of_log += [*_of_topics(topology, config, disk, log), *of_counts]
    dead_letters = FailureHandler.of(config).writes_dead_letters
    starts, of_stores = store_starts(
        topology,
        partitions,
        disk,
        log,
        workers=config.num_workers,
        dead_letters=dead_letters,
        exactly_once=config.exactly_once,
        backup_location=config.backup_location,
    )
    if log is not None:
        backed_up, of_backups = look_at_backups(topology, partitions, config, disk, log)
        missed = missed_findings(topology, partitions, disk, log, backed_up, dead_letters=dead_letters)
        of_stores += [*of_backups, *missed]
    roles = topic_roles(topology, config.dead_letter_topic)
    rows = topic_rows(roles, topics, {} if log is None else _counts(log), differ={} if log is None else log.differ)
    return Report(
        app.application_id,
        graph_of(topology),
        list(_of_settings(topology, config)),
        rows if log is not None else [{**row, "state": "not known"} for row in rows],
        of_log,
        [asdict(start) for start in starts],
        once_per_store([*disk.findings, *of_stores]),
    )


def _of_settings(topology: Topology, config: Config) -> Iterator[Finding]:
    """The checks of `stateline run` before it starts anything."""

    def look_for_spark() -> None:
        if topology.pipelines and config.runs_pipelines:
            need_extra("spark", "Pipelines")

    return refused_by(
        look_for_spark,
        lambda: check_registries(topology),
        lambda: check_names(topology, explicit=config.ensure_explicit_internal_resource_naming),
        lambda: check_files(config),
        lambda: check_writable(config),
        lambda: check_host(config) if is_served_here(config) else http_listener(config).close(),
        lambda: refuse_deleting(topology, ConfiguredTopics.of(config)),
    )


def _asked(topology: Topology, config: Config) -> tuple[LogView | None, list[Finding]]:
    """The log's side, None if the log does not answer."""
    try:
        found = look_at_log(topology, config)
    except CallerError as error:
        return None, [Finding("refused", str(error))]
    except StatelineError as error:
        return None, [Finding("unknown", f"The log does not answer: {error}")]
    return found or LogView(), []


def _of_topics(topology: Topology, config: Config, disk: DiskView, log: LogView) -> Iterator[Finding]:
    dead_letters = [] if config.dead_letter_topic is None else [config.dead_letter_topic]
    for error in refusals(topology, log.topics, also_required=dead_letters, counted=disk.counted):
        yield Finding("refused", str(error))
    yield from log.findings
    missing = {topic.name for topic in created_topics(topology)} - log.topics.keys()
    yield from (Finding("warning", warning) for warning in taken_over(topology, disk.made_of, missing))


def _partitions(topology: Topology, topics: Mapping[str, TopicInfo]) -> tuple[dict[int, int], list[Finding]]:
    """Subtopology → its number of tasks if all its topics are known, and the subtopologies whose topics do not fit."""
    counts = {name: info.partitions for name, info in topics.items()}
    with contextlib.suppress(TopologyError):  # missing topics are a finding of their own
        counts = {**wanted_partitions(created_topics(topology), counts), **counts}
    partitions: dict[int, int] = {}
    findings: list[Finding] = []
    for subtopology in topology.subtopologies:
        if all(topic.name in counts for topic in subtopology.sources):
            try:
                partitions |= subtopology_partitions(replace(topology, subtopologies=(subtopology,)), counts)
            except TopologyError as error:
                findings.append(Finding("refused", f"Subtopology {subtopology.ordinal}: {error}"))
    return partitions, findings


def _counts(log: LogView) -> dict[str, int]:
    counts = dict.fromkeys(log.topics, 0)
    for place, (first, end) in log.bounds.items():
        counts[place.topic] += end - first
    return counts
