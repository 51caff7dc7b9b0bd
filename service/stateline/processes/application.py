"""List the processes of an application, as children of a supervisor."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from stateline.config.directory import make_state_directory
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.processes.child import HAND_OVER, LEAVE, Child
from stateline.processes.machine import is_submitted
from stateline_store.errors import ConfigurationError, DoesNotExistError, LockedError
from stateline_store.files.directory import TaskLock

# Pipelines and the server stop first, together. The server forwards queries of uncommitted state to workers, so it has
# to complete its requests while they live. Pipelines write the workers' input and are the slowest to stop. Workers then
# commit and close without new input or queries.
_FIRST, _LAST = 0, 1
SERVER = "server"
SCANS = "scans"
ALL_PIPELINES = "pipelines"  # the process that runs several pipelines
_RUN_LOCK = ".run-lock"  # in the application's directory, held by `stateline run`


@contextmanager
def only_run(config: Config) -> Iterator[None]:
    """Be the only `stateline run` of this application in this state directory during the block.

    Workers of a second one would have the same names and restart without end. Raises `ConfigurationError` while the
    first one lives.
    """
    application = make_state_directory(config).application
    try:
        lock = TaskLock(application / _RUN_LOCK)
    except LockedError as error:
        holder = (application / _RUN_LOCK).read_text().strip() or "unknown"
        raise ConfigurationError(
            f"{config.application_id} is run in {application} already (process {holder}): stop that `stateline run` "
            "first. More workers are a setting of it (num.workers); another run beside it needs another state.dir "
            "and a group.instance.id of its own, another application an application.id."
        ) from error
    try:
        yield
    finally:
        lock.release()


def application_children(app: App, config: Config, target: str, passed_on: Sequence[str]) -> list[Child]:
    """The processes of pipelines, `num.workers` workers (none without stores), and a server. There are no pipelines if
    `pipeline.node` names another node.

    Workers cannot share a ``group.instance.id``: each appends its number to the configured one.
    """
    topology = app.topology()
    workers = config.num_workers if topology.subtopologies else 0
    pipelines = list(topology.pipelines) if config.runs_pipelines else []
    children = pipeline_children(config, pipelines, target, passed_on)
    for number in range(workers):
        name = f"worker-{number}"
        static = ("--set", f"group.instance.id={config.group_instance_id}-{number}") if config.group_instance_id else ()
        command = _command("worker", target, "--instance", name, *passed_on, *static)
        stop_s = config.worker_stop_timeout_ms / 1000
        children.append(Child(name, command, stop_order=_LAST, says_ready=True, quits_by=LEAVE, stop_timeout_s=stop_s))
    serve = _command("serve", target, *passed_on)
    children.append(Child(SERVER, serve, stop_order=_FIRST))
    if config.server_processes == 1:  # else the server is a supervisor, which starts them
        children += scan_children(config, serve)
    return children


def scan_children(config: Config, serve: Sequence[str]) -> list[Child]:
    """Return the scan processes, `server.scan.processes` of them. `serve` is the command of a server."""
    names = [f"{SCANS}-{number}" for number in range(config.server_scan_processes)]
    return [Child(name, (*serve, "--scans"), stop_order=_FIRST, says_ready=True, fails_alone=True) for name in names]


def listening_child(child: Child, clients: int, nodes: int | None) -> Child:
    """Make the server inherit the sockets of these descriptors, so that it can take over from another one. Other
    children are returned unchanged."""
    if child.name != SERVER:
        return child
    others = () if nodes is None else (nodes,)
    where = ("--listener", str(clients), *(part for fd in others for part in ("--for-nodes", str(fd))))
    return replace(
        child,
        command=(*child.command, *where),
        pass_fds=(clients, *others),
        says_ready=True,
        answers=True,
        takes_over=True,
        leaves_by=HAND_OVER,
    )


def pipeline_children(config: Config, names: Sequence[str], target: str, passed_on: Sequence[str]) -> list[Child]:
    """One process per pipeline, or one for all (`pipeline.drivers`). A mistake in a pipeline ends that process
    alone."""
    if len(names) > 1 and share_a_driver(config, names):
        command = _command("pipeline", target, *names, *passed_on)
        return [Child(ALL_PIPELINES, command, stop_order=_FIRST, fails_alone=True)]
    commands = {name: _command("pipeline", target, name, *passed_on) for name in names}
    return [Child(name, command, stop_order=_FIRST, fails_alone=True) for name, command in commands.items()]


def share_a_driver(config: Config, names: Sequence[str]) -> bool:
    """Whether these pipelines run in one process: if configured so, and always under ``spark-submit``."""
    return len(names) == 1 or config.pipeline_drivers == "one" or is_submitted()


def chosen_pipelines(app: App, names: Sequence[str]) -> list[str]:
    """The pipelines of these names, all if there are none.

    Raises `DoesNotExistError` for an undeclared name, and if the application has no pipelines.
    """
    declared = list(app.topology().pipelines)
    if not declared:
        raise DoesNotExistError(f"Application {app.application_id!r} declares no pipeline.")
    for name in names:
        if name not in declared:
            raise DoesNotExistError(f"There is no pipeline {name!r}: the App declares {', '.join(declared)}.")
    return list(dict.fromkeys(names)) or declared


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "stateline", *arguments)
