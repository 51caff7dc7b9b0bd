"""Find processes of an application, as far as this machine can see them. A reset is refused while any runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stateline.config.settings import Config
from stateline.deployment.nodes_topic import known_nodes, nodes_partition
from stateline.deployment.pipelines.lease import lease_group
from stateline.deployment.pipelines.reports import SILENT_S, PipelineReport, follow_reports, reports_partition
from stateline.deployment.pipelines.status import lock_path as pipeline_lock_path
from stateline.deployment.pipelines.status import pipelines_directory
from stateline.deployment.stores.resets import ResetWork
from stateline.deployment.unix_sockets import is_served
from stateline.deployment.workers.instance_file import instances_directory
from stateline.log.interface import Admin, GroupMember, Log
from stateline.model.topology import Topology
from stateline_store import StateDirectory
from stateline_store.inspection.inspection import lock_holder, may_be_held

_LOOK_INTERVAL_S = 0.25


def running_here(config: Config, *, holds_run_lock: bool = False) -> list[str]:
    """Processes on this machine, for people, by locks and sockets that end with their processes."""
    directory = StateDirectory(config.state_dir, config.application_id)
    found = []
    if not holds_run_lock and lock_holder(directory.application / ".run-lock")[0]:
        found.append(f"stateline run in {directory.application}")
    for path in sorted(instances_directory(directory.application).glob("*.lock")):
        if may_be_held(path):
            found.append(f"worker {path.stem} here")
    for path in sorted(pipelines_directory(config.state_dir, config.application_id).glob("*/")):
        if may_be_held(pipeline_lock_path(path)) or _jvm_holds(path / ".spark-lock"):
            found.append(f"pipeline {path.name} here")
    if _any_server(directory.application):
        found.append("a server here")
    return found


def is_served_here(config: Config) -> bool:
    """Whether a server, or `stateline run`, runs with this state directory. Makes no file."""
    application = config.state_dir / config.application_id
    return application.is_dir() and (may_be_held(application / ".run-lock") or _any_server(application))


def _any_server(application: Path) -> bool:
    for path in (application / "servers").glob("*.sock"):
        with suppress(OSError):
            if is_served(path):
                return True
    return False


def running_elsewhere(config: Config, topology: Topology, log: Log, admin: Admin) -> list[str]:
    """Processes on other machines, for people: members of groups, nodes, and drivers. Listens half a minute for a
    driver that may live. Raises what the log raises."""
    found = [_as_member(m) for m in admin.members(config.application_id)]
    for pipeline in topology.pipelines:
        found += [
            f"pipeline {pipeline} on {member.client_id or 'a node'}"
            for member in admin.members(lease_group(config.application_id, pipeline))
        ]
    if log.embedded_file is not None:
        return found
    names = (nodes_partition(config.application_id).topic, reports_partition(config.application_id).topic)
    there = admin.topics(names)
    if names[0] in there:
        found += [
            f"node {name} (stop it; if it is gone for good: stateline node forget MODULE:APP {name})"
            for name in sorted(known_nodes(log, config.application_id))
        ]
    if names[1] in there:
        found += [f"pipeline {name} on node {node}" for name, node in _living_drivers(log, config).items()]
    return found


def stopped_members(config: Config, admin: Admin) -> list[str]:
    """Members of the group from this state directory, as `running_elsewhere` names them. Nothing runs here: only their
    sessions are left. Raises what the log raises."""
    directory = StateDirectory(config.state_dir, config.application_id)
    if not directory.application.is_dir():
        return []
    own, names = str(directory.process_id()), _own_names(config)
    members = admin.members(config.application_id)
    return [_as_member(m) for m in members if _name(m) in names or own in m.client_id]


def open_transactions(work: ResetWork, admin: Admin) -> list[str]:
    """The application's own topics with an open transaction. Raises what the log raises."""
    names = [*work.changelogs, *work.internal]
    places = [place for info in admin.topics(names).values() for place in info.places]
    if not places:
        return []
    bounds, ends = admin.bounds(places), admin.committed_ends(places)
    return sorted({each.topic for each in places if ends[each] < bounds[each][1]})


def wait_for_sessions(config: Config, admin: Admin, say: Callable[[str], object]) -> None:
    """Wait for the end of sessions of members that were stopped or killed on this machine. Returns at once if other
    members are in the group. Nothing runs here, and nothing can start. Raises what the log raises."""
    admin.remove_members(config.application_id, _own_names(config))
    until_s = time.monotonic() + config.session_timeout_ms / 1000 + 1
    is_said = False
    while time.monotonic() < until_s:
        members = admin.members(config.application_id)
        own = str(StateDirectory(config.state_dir, config.application_id).process_id())
        if not members or any(member.client_id and own not in member.client_id for member in members):
            return
        if running_here(config, holds_run_lock=True):
            return
        if not is_said:
            names = ", ".join(sorted(map(_name, members)))
            say(f"Waiting until the session of {names} is over ({config.session_timeout_ms / 1000:g} s at most)")
            is_said = True
        time.sleep(_LOOK_INTERVAL_S)


def _own_names(config: Config) -> list[str]:
    """Names in the group of this state directory's workers, past ones included."""
    locks = instances_directory(StateDirectory(config.state_dir, config.application_id).application).glob("*.lock")
    return [config.member_name(lock.stem) for lock in locks]


def _as_member(member: GroupMember) -> str:
    return f"group member {_name(member)}"


def _name(member: GroupMember) -> str:
    return member.instance_id or member.member_id


def _jvm_holds(path: Path) -> bool:
    """Java locks with `fcntl`, not with `flock`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def _living_drivers(log: Log, config: Config) -> dict[str, str]:
    """Pipeline → node of drivers with other directories that report again while this listens."""
    own = str(StateDirectory(config.state_dir, config.application_id).process_id())
    newest: dict[str, PipelineReport | None] = {}
    heard: dict[str, str] = {}
    until_s: float | None = None  # set once all older reports are read

    def told(reports: Sequence[tuple[str, PipelineReport | None]], is_read: bool) -> bool:
        nonlocal until_s
        newest.update(reports)
        if until_s is not None:
            heard.update({name: found.node for name, found in reports if found is not None and found.directory != own})
        elif is_read:
            until_s = time.monotonic() + SILENT_S
        unknown = {
            name for name, found in newest.items() if found is not None and found.directory != own
        } - heard.keys()
        return until_s is None or (bool(unknown) and time.monotonic() < until_s)

    follow_reports(log, config.application_id, told, 0.5)
    return heard
