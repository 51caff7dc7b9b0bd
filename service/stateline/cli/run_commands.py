"""Declare the commands that run processes: `run`, `worker`, `serve` and `pipeline`."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateline.cli.target import ConfigFile, Settings, Target, loaded, log_origin, passed_on, pattern_topics
from stateline.processes.logging import json_line_writer
from stateline.processes.terminal import Terminal, hangups_held
from stateline_store.errors import ConfigurationError

if TYPE_CHECKING:
    from stateline.config.settings import Config
    from stateline.dsl.app import App
    from stateline.processes.child import Child
    from stateline.processes.run_plan import RunPlan

PlanFile = Annotated[Path | None, typer.Option("--plan", hidden=True, help="Write the plan here. Start nothing.")]
Fixed = Annotated[
    str | None, typer.Option("--fixed", hidden=True, help="Settings that the plan cannot change, as JSON.")
]

_NEVER = 1 << 30  # an unreachable threshold of the garbage collector


@hangups_held()
def run(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: load code and settings again when they change.")
    ] = False,
    plan: PlanFile = None,
    fixed: Fixed = None,
) -> None:
    """Run a whole application on this machine.

    It runs pipelines, workers and a server, each in a process, and restarts them if they end. Ctrl-C stops all of
    them in order. A second Ctrl-C stops them at once. SIGHUP loads changed code: the workers restart one after the
    other, and a new server is ready before the old one ends.

    Example: stateline run flights:app --set num.workers=2
    """
    from stateline.config.directory import held_by_node
    from stateline.config.extras import need_extra
    from stateline.model.registries import check_registries
    from stateline.model.unnamed_stores import check_names
    from stateline.processes.application import application_children, only_run
    from stateline.processes.run_plan import RunPlan, fixed_settings, refuse_others
    from stateline.processes.supervisor import SAYS
    from stateline.server.listeners import check_files
    from stateline.server.nodes.keys import node_keys

    terminal = Terminal()  # opened early: it may close while the code loads
    if reload:  # Python would use compiled code of the same second as a changed source
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    app, config = loaded(target, config_file, settings)
    options = [*passed_on(config_file, settings), *pattern_topics(app, config)]
    if fixed is not None:  # before anything uses changed paths
        refuse_others(fixed_settings(config), json.loads(fixed))
    if app.topology().pipelines and config.runs_pipelines:
        need_extra("spark", "Pipelines")
    check_registries(app.topology())
    check_names(app.topology(), explicit=config.ensure_explicit_internal_resource_naming)
    children = application_children(app, config, target, options)
    planned = RunPlan(children, run_files(target, config_file), fixed_settings(config))
    if plan is not None:
        _refuse_what_check_refuses(app, config)
        planned.write(plan)
        return
    with only_run(config), held_by_node(config):
        check_files(config)
        if node_keys(config) is not None:
            from stateline.server.nodes.acceptance import check_accepted

            check_accepted(config, app.topology())
        emit = _output_of(config)
        if app.topology().pipelines and not config.runs_pipelines:
            emit(SAYS, f"The pipelines run on node {config.pipeline_node!r} (pipeline.node), and not here.")
        again = [sys.executable, "-m", "stateline", "run", target, *options]
        load = [*again, "--fixed", json.dumps(planned.fixed), "--plan"]
        _supervise(planned, config, load, emit, terminal, reload=reload)


def _refuse_what_check_refuses(app: App, config: Config) -> None:
    """Raise `ConfigurationError` if the new code would not start. Workers stop for it only after this check. They find
    out themselves what could not be checked, such as a log that does not answer."""
    from stateline.cli.check.run import check

    refused = [finding.message for finding in check(app, config).findings if finding.level == "refused"]
    if refused:
        more = f" `stateline check` says {len(refused) - 1} more." if len(refused) > 1 else ""
        raise ConfigurationError(f"{refused[0]}{more}")


def _supervise(
    planned: RunPlan,
    config: Config,
    load: list[str],
    emit: Callable[[str, str], None],
    terminal: Terminal,
    *,
    reload: bool,
) -> None:
    """Run the planned processes until a signal. A new server can take over their sockets."""
    from functools import partial

    from stateline.processes.application import SERVER, listening_child
    from stateline.processes.renewal import Renewal, SourceFiles
    from stateline.processes.run_plan import RunPlan
    from stateline.processes.supervisor import Supervisor
    from stateline.server.listeners import listening
    from stateline.server.stand_in import StandIn

    with listening(config) as (clients, nodes):
        descriptors = clients.fileno(), None if nodes is None else nodes.fileno()

        def listens(child: Child) -> Child:
            return listening_child(child, *descriptors)

        sockets = [each for each in (clients, nodes) if each is not None]
        supervisor = Supervisor(
            [listens(child) for child in planned.children],
            emit=emit,
            listeners=sockets,
            stand_in=StandIn(clients, config, partial(emit, SERVER)),
        )
        sources = SourceFiles() if reload else None
        renewal = Renewal(supervisor, load, lambda path: RunPlan.read(path, planned.fixed, listens), sources)
        renewal.watch(planned.files)
        supervisor.run(renewal, terminal)


def worker(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    instance: Annotated[
        str, typer.Option(metavar="NAME", help="The worker's name, unique in a state directory.")
    ] = "worker-0",
) -> None:
    """Run one worker, which keeps the stores.

    It reads the topics and runs the processors. It shares the tasks with the other workers of the application. At
    SIGTERM it commits and stops.

    Example: stateline worker flights:app --instance worker-1
    """
    with nothing_collected():
        app, config = loaded(target, config_file, settings, to_write=True)
        from stateline.config.directory import held_by_node
        from stateline.worker.loop.run import run_worker

    with held_by_node(config):
        run_worker(app, config, instance=instance)


@hangups_held()
def serve(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    process: Annotated[int | None, typer.Option(hidden=True, help="Set by the parent: this process's number.")] = None,
    listener: Annotated[int | None, typer.Option(hidden=True, help="Set by the parent: its socket.")] = None,
    for_nodes: Annotated[int | None, typer.Option(hidden=True, help="Set by the parent: its socket for nodes.")] = None,
    scans: Annotated[bool, typer.Option("--scans", hidden=True, help="Set by the parent: answer large reads.")] = False,
    plan: PlanFile = None,
) -> None:
    """Answer queries over HTTP.

    The server reads the stores of the workers in the same state directory. Its page /docs lists all requests.

    Example: stateline serve flights:app --set server.port=8080
    """
    if plan is not None:
        from stateline.processes.run_plan import RunPlan, fixed_of_serve
        from stateline.server.listeners import check_files, check_host

        _, config = loaded(target, config_file, settings)
        check_files(config)
        check_host(config)  # the running server has the port, so only the host is checked
        RunPlan((), (), fixed_of_serve(config)).write(plan)
        return
    terminal = Terminal()  # opened early, as in `run`
    with nothing_collected():
        app, config = loaded(target, config_file, settings, to_write=True)
        from stateline.config.directory import held_by_node
        from stateline.server import Listening, run_scan_process, serve_inherited
        from stateline.server import serve as run_server

    inherited = None if listener is None else Listening(listener, for_nodes)
    with held_by_node(config):
        if scans:
            run_scan_process(app, config)
            return
        if process is not None and inherited is not None:
            serve_inherited(app, config, process, inherited)
            return
        options = [*passed_on(config_file, settings), *pattern_topics(app, config)]
        again = [sys.executable, "-m", "stateline", "serve", target, *options]
        run_server(app, config, again, [*again, "--plan"], inherited, terminal)


def pipeline(
    target: Target,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="The pipelines to run. All by default.", show_default=False),
    ] = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the present records, then end.")
    ] = False,
) -> None:
    """Run the application's Spark pipelines, or some of them.

    A single pipeline runs in this process. Several pipelines run in a process each, or in this process with
    pipeline.drivers=one. A failed pipeline restarts. With several nodes, one node runs the pipelines: pipeline.node,
    or the first that started one. With pipeline.checkpoint.location, another node takes over if it is lost.

    Example: stateline pipeline flights:app delays
    """
    from stateline.config.directory import held_by_node
    from stateline.config.extras import need_extra
    from stateline.deployment.pipelines.node import be_pipelines_node
    from stateline.processes.application import chosen_pipelines, pipeline_children, share_a_driver
    from stateline.processes.supervisor import Supervisor

    app, config = loaded(target, config_file, settings, to_write=True)
    chosen = chosen_pipelines(app, names or ())
    need_extra("spark", "Pipelines")
    with held_by_node(config):
        be_pipelines_node(config)
        if available_now or share_a_driver(config, chosen):
            from stateline.deployment.configured_log import configured_log
            from stateline.spark.drivers.several_pipelines import run_pipelines

            with closing(configured_log(config)) as log:
                run_pipelines(app, chosen, config, log, available_now=available_now)
        else:
            options = [*passed_on(config_file, settings), *pattern_topics(app, config)]
            children = pipeline_children(config, chosen, target, options)
            Supervisor(children, emit=_output_of(config)).run()


def run_files(target: str, config_file: Path | None) -> list[Path]:
    from stateline.cli.loading import own_files
    from stateline.config.loading import DEFAULT_FILE

    return [*own_files(target), Path.cwd() / (config_file or DEFAULT_FILE)]


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collect no garbage while a process loads its code. That saves a twelfth of the start. Later collections ignore
    the loaded code too. An application's own `gc.disable()` or thresholds stay."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_NEVER)
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold()[0] == _NEVER:
            gc.set_threshold(*thresholds)


def _output_of(config: Config) -> Callable[[str, str], None]:
    from stateline.processes.supervisor import write_line

    return json_line_writer(log_origin(config)) if config.log_format == "json" else write_line
