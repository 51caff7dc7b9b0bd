"""The command line. Each command loads what it needs when it runs, so that `--help` answers at once.

Errors are one line on standard error. Exit codes: 0 done, 1 something went wrong, 2 the caller's mistake (a
restart cannot help: `stateline.processes.supervisor` relies on it), 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from typer.exceptions import TyperException

from stateline.cli import tokens as cli_tokens
from stateline.cli.help import FLAGS, PlainHelp
from stateline.processes.logging import say_error, set_up_logging, use_log_format, write_json_line
from stateline_store.errors import CallerError, RecordError, StatelineError

if TYPE_CHECKING:
    from stateline.config.settings import Config
    from stateline.dsl.app import App

logger = logging.getLogger(__name__)

TRACEBACK_VARIABLE = "STATELINE_TRACEBACK"

cli = typer.Typer(
    name="stateline",
    help="Interactive queries for stream state: topics in, stores kept, questions answered over HTTP.",
    epilog=f"{FLAGS} Settings are Kafka Streams'; `stateline config MODULE:APP` lists them.",
    add_completion=False,
    rich_markup_mode=None,  # plain text, and rich need not be loaded
)


cli.add_typer(cli_tokens.commands)
_command = partial(cli.command, cls=PlainHelp, epilog=FLAGS)

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App: flights:app is `app` in flights.py.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, as in commit.interval.ms=100. Repeatable."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML settings instead of ./stateline.toml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@cli.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"stateline {installed('stateline')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command()
def run(target: Target, settings: Settings = None, config_file: ConfigFile = None) -> None:
    """Run a whole application on this machine.

    Its pipelines, workers and server are a process each, started again when one ends. Ctrl-C stops all in
    order, a second Ctrl-C at once.

    Example: stateline run flights:app --set num.workers=2
    """
    from stateline.cli.processes import application_children, only_run
    from stateline.processes.supervisor import Supervisor

    app, config = _loaded(target, config_file, settings)
    with only_run(config):
        children = application_children(app, config, target, _passed_on(config_file, settings))
        Supervisor(children, emit=_written(config)).run()


@_command()
def worker(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    instance: Annotated[
        str, typer.Option(help="This worker's name; each worker of a state directory needs another.")
    ] = "worker-0",
) -> None:
    """Run one worker, which keeps the stores.

    It reads the topics and runs the processors, sharing the tasks with the application's other workers.
    SIGTERM makes it commit and stop.

    Example: stateline worker flights:app --instance worker-1
    """
    app, config = _loaded(target, config_file, settings, to_write=True)
    from stateline.worker.run import run_worker

    run_worker(app, config, instance=instance)


@_command()
def serve(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    process: Annotated[int | None, typer.Option(hidden=True, help="Set by server.processes: which one.")] = None,
    listener: Annotated[int | None, typer.Option(hidden=True, help="Set by server.processes: where.")] = None,
) -> None:
    """Answer queries over HTTP.

    The server reads the stores that workers keep in the same state directory. /docs shows all it can do.

    Example: stateline serve flights:app --set server.port=8080
    """
    app, config = _loaded(target, config_file, settings, to_write=True)
    from stateline.server import serve as run_server
    from stateline.server import serve_inherited

    if process is not None and listener is not None:
        serve_inherited(app, config, process, listener)
        return
    again = [sys.executable, "-m", "stateline", "serve", target, *_passed_on(config_file, settings)]
    run_server(app, config, again)


@_command()
def pipeline(
    target: Target,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Some of its pipelines.", show_default=False)
    ] = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Stop when all that is there now has been read.")
    ] = False,
) -> None:
    """Run the application's Spark pipelines, or those named.

    One runs in this process. Several run in a process each, or with pipeline.drivers=one in this one; one that fails
    is started again. --available-now reads what is there now, in this process, and ends.

    Example: stateline pipeline flights:app delays
    """
    from stateline.cli.processes import chosen_pipelines, pipeline_children, run_pipelines_here, share_a_driver
    from stateline.processes.supervisor import Supervisor

    app, config = _loaded(target, config_file, settings, to_write=True)
    chosen = chosen_pipelines(app, names or ())
    if available_now or share_a_driver(config, chosen):
        run_pipelines_here(app, config, chosen, available_now=available_now)
    else:
        children = pipeline_children(config, chosen, target, _passed_on(config_file, settings))
        Supervisor(children, emit=_written(config)).run()


@_command()
def topics(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    create: Annotated[bool, typer.Option("--create", help="Create the source topics that are missing.")] = False,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Of each topic that --create creates.", show_default="4")
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Delete this topic with all that is in it; can be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the application's topics, create missing ones, delete some.

    Shows what each is for, its partitions and records. Stateline creates its own topics when it starts;
    source topics are yours, and --create creates them for you. To start a pipeline over, stop it, and
    delete the topics that it writes, as its message says.

    Example: stateline topics flights:app --create --partitions 8
    """
    from stateline.cli import topics as cli_topics

    app, config = _loaded(target, config_file, settings, to_write=create or bool(delete))
    said = cli_topics.topics(app, config, create=create, delete=delete or (), partitions=partitions, as_json=as_json)
    typer.echo(said)


@_command()
def produce(
    target: Target,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="One that the application reads.")],
    settings: Settings = None,
    config_file: ConfigFile = None,
) -> None:
    """Write records to a topic.

    One per line of standard input: the key, a tab, the value. A key, a tab and nothing deletes the key. Prints
    the Position written, which a query can wait for.

    Example: stateline produce hello:app people < people.tsv
    """
    from stateline.cli import produce as cli_produce

    app, config = _loaded(target, config_file, settings, to_write=True)
    written = cli_produce.produce(app, config, topic, sys.stdin)
    if written == "{}":
        typer.echo("The input was empty: nothing was written.", err=True)
    typer.echo(written)


@_command()
def stores(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the application's stores.

    Shows what was committed of each in this machine's state directory. It only reads, workers running or not.

    Example: stateline stores flights:app --json
    """
    from stateline.cli import stores as cli_stores

    app, config = _loaded(target, config_file, settings)
    if said := cli_stores.nothing_there(config):
        typer.echo(said, err=True)
    typer.echo(cli_stores.stores(app, config, as_json=as_json))


@_command()
def config(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List every setting and where it was set.

    Later sources win: defaults, the App, ./stateline.toml or --config, STATELINE_… variables, --set.

    Example: stateline config flights:app --set processing.guarantee=exactly_once_v2
    """
    from stateline.cli.table import as_text

    _, loaded = _read(target, config_file, settings)
    typer.echo(as_text([row._asdict() for row in loaded.describe()], as_json=as_json, hide=("description",)))


@_command()
def inspect(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A state directory, an application's in it, or a task's.")
    ],
    store: Annotated[str | None, typer.Option(metavar="NAME", help="This store alone.")] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="This task alone, as in 0_3.")] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="The entries of this key.")] = None,
    lower: Annotated[str | None, typer.Option("--from", metavar="K", help="The entries from this key on.")] = None,
    upper: Annotated[str | None, typer.Option("--to", metavar="K", help="The entries up to this key.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Entries to show at most; 100 unless given.")
    ] = None,
    key_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="string, json, bytes, int32, int64 or float64.")
    ] = None,
    value_type: Annotated[str | None, typer.Option(metavar="TYPE", help="The same for values.")] = None,
    as_json: AsJson = False,
) -> int:
    """Look into a state directory.

    Lists tasks, stores, what was committed and what is damaged; or entries of a store. Needs no application, writes
    nothing, and may run beside workers.

    Example: stateline inspect .stateline --store totals --key Ada --value-type int64
    """
    from stateline.cli import inspect as cli_inspect

    request = cli_inspect.Request(store, task, key, lower, upper, limit, key_type, value_type)
    text, code = cli_inspect.inspect(directory, request, as_json=as_json)
    typer.echo(text)
    return code


@_command()
def snapshot(
    names: Annotated[list[str], typer.Argument(metavar="STORE", help="The stores.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="parquet or arrow.")] = "parquet",
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty folder.")] = Path("snapshot"),
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server.", show_default="http://127.0.0.1:8000")
    ] = None,
    application: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="The server that this App's settings say.")
    ] = None,
    config_file: ConfigFile = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="These columns alone.")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="K", help="Keys that begin so.")] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of versioned stores what was valid then: ISO 8601, or ms.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A token; else STATELINE_TOKEN has one.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Who signed the server's certificate.")] = None,
    ttl: Annotated[int, typer.Option(metavar="S", min=1, help="The lease, renewed while this runs.")] = 300,
) -> None:
    """Write stores of a running server to files.

    All of them as they were at one moment, a file per partition. DIR/_SUCCESS comes last.

    Example: stateline snapshot flights delays --to parquet --out today
    """
    from stateline.cli import snapshot as cli_snapshot

    if url is None and application is not None:
        url = cli_snapshot.url_of(_read(application, config_file, None)[1])
    counts = cli_snapshot.export(
        cli_snapshot.server_at(url, token_file, ca_file),
        cli_snapshot.wanted(names, to, out, columns=columns, prefix=prefix, as_of=as_of, ttl_s=ttl),
    )
    for name, count in counts.items():
        typer.echo(f"{out / name}: {count} rows")


@_command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Replay, ask, print the answers, and stop.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the server; 0 takes a free one.")] = 8000,
    state_dir: Annotated[Path, typer.Option(help="Where the demo keeps its data; emptied at each start.")] = Path(
        ".stateline/demo"
    ),
) -> int:
    """Try Stateline on a year of New York's flights.

    Replays them through a Spark pipeline and stores, and serves questions about them. Needs Java, no broker.

    Example: stateline demo --once
    """
    from stateline.demo import run_demo

    return run_demo(once=once, port=port, state_dir=state_dir)


def _loaded(
    target: str, config_file: Path | None, settings: Sequence[str] | None, *, to_write: bool = False
) -> tuple[App, Config]:
    """The App and its settings, ready to be used: nothing is begun with a state directory that cannot be one, and who
    is going to write there finds it made.
    """
    from stateline.config.directory import check_state_directory, make_state_directory

    app, config = _read(target, config_file, settings)
    use_log_format(config.log_format)
    for row in config.describe():
        if row.origin != "default":
            logger.debug("%s = %s (from %s)", row.name, row.value, row.origin)
    check_state_directory(config)
    if to_write:
        make_state_directory(config)
    return app, config


def _read(target: str, config_file: Path | None, settings: Sequence[str] | None) -> tuple[App, Config]:
    from stateline.cli.loading import load_app
    from stateline.config.settings import read_config

    app = load_app(target)
    return app, read_config(app.application_id, path=config_file, overrides=settings or (), defaults=app.config)


def _written(config: Config) -> Callable[[str, str], None]:
    """How a supervisor passes on what its processes say."""
    from stateline.processes.supervisor import write_line

    return write_json_line if config.log_format == "json" else write_line


def _passed_on(config_file: Path | None, settings: Sequence[str] | None) -> list[str]:
    """The arguments that make a child see the same settings as this process."""
    passed = [] if config_file is None else ["--config", str(config_file)]
    passed += {logging.DEBUG: ["-v"], logging.WARNING: ["-q"]}.get(logging.getLogger().level, [])
    for setting in settings or ():
        passed += ["--set", setting]
    return passed


class Flags(NamedTuple):
    """What may stand anywhere on the command line."""

    verbosity: int = 0
    traceback: bool = False


def split_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """Take -v, -q and --traceback out of the arguments, wherever they stand before a ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, after = arguments[:end], arguments[end:]
    verbosity = before.count("-v") + before.count("--verbose") - before.count("-q") - before.count("--quiet")
    taken = {"-v", "--verbose", "-q", "--quiet", "--traceback"}
    rest = [argument for argument in before if argument not in taken]
    return Flags(verbosity, "--traceback" in before), [*rest, *after]


# Why a folder or file could not be had that a restart does not mend.
_WRONG_PATH = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)


def explained(error: BaseException) -> tuple[str, int]:
    """What to tell the caller about an error, in one line, and the exit code."""
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context is not None else ""
        return f"{error.format_message().rstrip('.')}{_given(error)}.{hint}", 2
    # A record that cannot be processed is no mistake of the command line's, and no reason to stop the server.
    if isinstance(error, CallerError) and not isinstance(error, RecordError):
        return str(error), 2
    if isinstance(error, StatelineError):
        return str(error), 2 if isinstance(error.__cause__, _WRONG_PATH) else 1
    if isinstance(error, PermissionError) and error.filename is not None:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return f"{path}: {error.strerror}. Run as its owner, give this user the right, or set another state.dir.", 2
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text or 'no message'}. Run again with --traceback to see where.", 1


def _given(error: TyperException) -> str:
    """The value that an option refused, which Typer leaves out."""
    from pydantic_core import ValidationError

    refused = error.__cause__
    if not isinstance(refused, ValidationError):
        return ""
    return f" (given: {refused.errors()[0]['input']!r})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, `sys.argv` unless given; the exit code. Every error ends here, as one line."""
    flags, rest = split_flags(sys.argv[1:] if arguments is None else arguments)
    set_up_logging(flags.verbosity)
    if flags.traceback:
        os.environ[TRACEBACK_VARIABLE] = "1"  # for the processes that this one starts, too
    try:
        return int(cli(args=rest, prog_name="stateline", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last handler: it reports whatever it was
        if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0"):
            traceback.print_exc()
        message, code = explained(error)
        say_error(message)
        return code
