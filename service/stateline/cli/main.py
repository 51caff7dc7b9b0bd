"""The command line. Each command imports its code when it runs, so that `--help` answers at once.

Errors are one line on standard error. Exit codes: 0 done, 1 failed, 2 the caller's mistake, 130 interrupted. A restart
cannot help after 2: `stateline.processes.supervisor` relies on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer
from typer.exceptions import TyperException

from stateline.cli import run_commands, tokens
from stateline.cli.adopt.command import adopt
from stateline.cli.backup import commands as backup
from stateline.cli.check.command import check
from stateline.cli.export.command import export
from stateline.cli.new_project import new
from stateline.cli.nodes import commands as nodes
from stateline.cli.reset.commands import reset
from stateline.cli.sql.command import sql
from stateline.cli.state import commands as state
from stateline.cli.target import FLAGS, PlainHelp, command_of
from stateline.cli.topics import commands as topics
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.processes.child import CALLERS_MISTAKE, STORES_REFUSED
from stateline.processes.logging import say_error, set_up_logging, use_log_format
from stateline_store.errors import CallerError, RecordError, StatelineError

TRACEBACK_VARIABLE = "STATELINE_TRACEBACK"
_COMMANDS = (
    new,
    *(run_commands.run, run_commands.worker, run_commands.serve, run_commands.pipeline),
    check,
    *(topics.topics, topics.produce, topics.consume),
    *(state.stores, sql, state.config, state.inspect, state.snapshot, export),
    *(reset, state.status, adopt),
)

cli = typer.Typer(
    name="stateline",
    help="Interactive queries for stream state: Kafka topics in stores, answered over HTTP.",
    epilog=f"{FLAGS} `stateline config MODULE:APP` lists the settings.",
    add_completion=False,
    rich_markup_mode=None,  # plain text, without loading rich
)
cli.add_typer(backup.commands)
cli.add_typer(tokens.commands)
cli.add_typer(nodes.commands)
cli.add_typer(nodes.certificates)
for _function in _COMMANDS:
    cli.command(cls=PlainHelp, epilog=FLAGS)(_function)

# Causes of a failed access to a file that no restart mends.
_WRONG_PATH = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)


@cli.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"stateline {installed('stateline')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Flags(NamedTuple):
    """Flags that are allowed anywhere on the command line."""

    verbosity: int = 0
    traceback: bool = False


def split_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """Take -v, -q and --traceback out of the arguments, before any ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, after = arguments[:end], arguments[end:]
    verbosity = before.count("-v") + before.count("--verbose") - before.count("-q") - before.count("--quiet")
    taken = {"-v", "--verbose", "-q", "--quiet", "--traceback"}
    rest = [argument for argument in before if argument not in taken]
    return Flags(verbosity, "--traceback" in before), [*rest, *after]


def explained(error: BaseException) -> tuple[str, int]:
    """Turn an error into a message in one line, and the exit code."""
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context is not None else ""
        return f"{error.format_message().rstrip('.')}{_given(error)}.{hint}", CALLERS_MISTAKE
    if isinstance(error, StoresRefusedError):
        return str(error), STORES_REFUSED
    # A bad record is no mistake in the command line, and no reason to stop the server.
    if isinstance(error, CallerError) and not isinstance(error, RecordError):
        return str(error), CALLERS_MISTAKE
    if isinstance(error, StatelineError):
        return str(error), CALLERS_MISTAKE if isinstance(error.__cause__, _WRONG_PATH) else 1
    if isinstance(error, PermissionError) and error.filename is not None:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return (
            f"{path}: {error.strerror}. Run as its owner, give this user the right, or set another state.dir.",
            CALLERS_MISTAKE,
        )
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text or 'no message'}. Run again with --traceback to see where.", 1


def _given(error: TyperException) -> str:
    """The refused value, which Typer leaves out."""
    from pydantic_core import ValidationError

    refused = error.__cause__
    if not isinstance(refused, ValidationError):
        return ""
    return f" (given: {refused.errors()[0]['input']!r})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default `sys.argv`, and return the exit code. Every error ends here as one line."""
    flags, rest = split_flags(sys.argv[1:] if arguments is None else arguments)
    set_up_logging(flags.verbosity)
    if "log.format=json" in rest or os.environ.get("STATELINE_LOG_FORMAT") == "json":
        use_log_format("json", {"process": command_of(rest)})  # until the settings are read
    if flags.traceback:
        os.environ[TRACEBACK_VARIABLE] = "1"  # also for child processes
    try:
        return int(cli(args=rest, prog_name="stateline", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last handler: it reports whatever it was
        message, code = explained(error)
        say_error(message, error if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0") else None)
        return code
