"""Arguments and options that commands share, the App and settings that they name, and the look of their help."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from stateline.processes.logging import use_log_format
from stateline_store import InvalidArgumentError, LogUnavailableError

if TYPE_CHECKING:
    from stateline.config.settings import Config
    from stateline.dsl.app import App

logger = logging.getLogger(__name__)
Word = TypeVar("Word", bound=str)

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App: flights:app is `app` in flights.py.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as commit.interval.ms=100. Repeatable."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file of settings, instead of ./stateline.toml.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ServerUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The address of the server.", show_default="http://127.0.0.1:8000"),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="A file with a token. STATELINE_TOKEN by default.")
]
CaFile = Annotated[Path | None, typer.Option("--ca-file", metavar="FILE", help="The server's authority, as PEM.")]
FLAGS = "All commands take -v (says more), -q (says less) and --traceback (shows where an error arose)."
_ASK_AGAIN_S = 5.0  # besides the time that the log takes to fail
_TYPE = re.compile(r" <(str|list\[str\]|path)>")


class PlainHelp(TyperCommand):
    """Leaves out the Python type that Typer puts after every argument."""

    def get_help(self, ctx: Any) -> str:  # a Context of Typer's own click, which Typer does not export
        return _TYPE.sub(lambda shown: " " * len(shown[0]), super().get_help(ctx))


def loaded(
    target: str, config_file: Path | None, settings: Sequence[str] | None, *, to_write: bool = False
) -> tuple[App, Config]:
    """Load the App and its settings. Refuses an unusable state directory, and makes it if `to_write`."""
    from stateline.config.directory import check_state_directory, make_state_directory

    app, config = read(target, config_file, settings)
    use_log_format(config.log_format, log_origin(config))
    if logger.isEnabledFor(logging.DEBUG):
        for row in config.describe():
            if row.origin != "default":
                logger.debug("%s = %s (from %s)", row.name, row.value, row.origin)
    check_state_directory(config)
    if to_write:
        make_state_directory(config)
    return app, config


def log_origin(config: Config) -> dict[str, str]:
    """The members of a log line that say where it comes from. A supervisor replaces `process`."""
    return {"node": config.node, "application": config.application_id, "process": command_of(sys.argv[1:])}


def command_of(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "stateline")


def read(target: str, config_file: Path | None, settings: Sequence[str] | None) -> tuple[App, Config]:
    from stateline.cli.loading import load_app
    from stateline.config.loading import read_config

    app = load_app(target)
    config = read_config(app.application_id, path=config_file, overrides=settings or (), defaults=app.config)
    app.configure(config)
    return app, config


def passed_on(config_file: Path | None, settings: Sequence[str] | None) -> list[str]:
    """The arguments that give a child the settings of this process."""
    passed = [] if config_file is None else ["--config", str(config_file)]
    passed += {logging.DEBUG: ["-v"], logging.WARNING: ["-q"]}.get(logging.getLogger().level, [])
    for setting in settings or ():
        passed += ["--set", setting]
    return passed


def pattern_topics(app: App, config: Config) -> list[str]:
    """The arguments that give a child the topics that this process has found for patterns, so that all children have
    one topology. None if there are no patterns, or if the settings have the topics. Waits for a log that does not
    answer, and says so."""
    from stateline.dsl.topic_patterns import PATTERN_TOPICS
    from stateline.model.topic_patterns import matched_sources

    if config.pattern_topics is not None:
        return []
    while True:
        try:
            found = matched_sources(app.topology())
        except LogUnavailableError as error:
            logger.warning("Waiting for the log. %s", error)
            sleep(_ASK_AGAIN_S)
        else:
            return ["--set", f"{PATTERN_TOPICS}={','.join(found)}"] if found else []


def word_of(option: str, given: str, among: Sequence[Word]) -> Word:
    """The given word. Raises `InvalidArgumentError` with the option, its value and the accepted words."""
    from stateline.serde.plain import shown

    for word in among:
        if word == given:
            return word
    raise InvalidArgumentError(f"{option} {shown(given)}: {' or '.join(among)} is accepted.")


def confirmed(question: str, *, yes: bool, before: str = "") -> bool:
    """Ask on standard error unless `yes`, and return the answer. Raises `InvalidArgumentError` if nobody can answer.
    `before` is what to do before giving --yes."""
    try:
        return yes or typer.confirm(question, err=True)
    except typer.Abort as error:
        if sys.stdin is not None and sys.stdin.isatty():  # by Ctrl-C or Ctrl-D
            return False
        raise InvalidArgumentError(
            f"Nobody has answered, so nothing was done: give --yes where nobody can be asked{before}."
        ) from error
