"""`stateline topics --delete`: delete topics of an application with all their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from stateline.cli.reset.execution import Execution
from stateline.cli.reset.running import running_here
from stateline.cli.topics.listing import offset_bounds, topic_roles
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.deployment.stores.resets import ResetWork
from stateline.dsl.app import App
from stateline.log.interface import Admin, TopicInfo
from stateline.model.pipeline import epochs_topic
from stateline.model.topology import Topology
from stateline_store import DoesNotExistError


def delete_topics(
    app: App, config: Config, names: Sequence[str], *, agreed: Callable[[], bool], warn: Callable[[str], object]
) -> bool:
    """Say with `warn` which topics these are, ask `agreed`, and delete them. Returns whether they were deleted.

    Raises `DoesNotExistError` if a topic does not exist or is not the application's, and `RetryLaterError` while
    anything of the application runs. Nothing is deleted then.
    """
    topology = app.topology()
    if not log_exists(config):
        deletable(topology, config, {}, names)
        return True
    with closing(configured_log(config)) as log:
        execution, work = Execution(config, topology, log, warn), ResetWork(internal=tuple(names))
        with closing(log.admin()) as admin:
            existing = admin.topics()
            roles = deletable(topology, config, existing, names)
            if running := running_here(config):
                raise execution.refusal(running)
            for name in dict.fromkeys(names):
                warn(_said(roles[name], existing[name], admin))
        if not agreed():
            return False
        with execution.alone(work) as admin:
            admin.delete_topics(names)
    return True


def deletable(
    topology: Topology, config: Config, existing: Mapping[str, TopicInfo], names: Sequence[str]
) -> dict[str, str]:
    """Topic → role of the topics that can be deleted: those that the code declares, and its pipelines' markers. Any
    other name, which may be another application's, raises `DoesNotExistError`."""
    roles = topic_roles(topology, config.dead_letter_topic)
    found = {name: role for name, role in roles.items() if role != "external"}
    found |= {epochs_topic(topology.application_id, name): "markers" for name in topology.pipelines}
    for name in names:
        if name not in found or name not in existing:
            there = ", ".join(sorted(found.keys() & existing.keys())) or "none"
            raise DoesNotExistError(f"--delete {name!r}: the application has no such topic. It has {there}.")
    return found


def _said(role: str, topic: TopicInfo, admin: Admin) -> str:
    most = sum(end - first for _, (first, end) in offset_bounds(admin, topic))
    return f"delete the {role} topic {topic.name}: {topic.partitions} partitions, {most:,} records at most"
