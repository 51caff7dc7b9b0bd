"""The shell at a terminal: history, completion and Ctrl-C, with prompt_toolkit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import typer

from stateline.cli.sql.session import COMMANDS, SqlSession, is_whole, parts_of
from stateline.client import RequestError
from stateline.config.extras import install_line
from stateline.sql.struct_types import quoted
from stateline_store import ConfigurationError, StatelineError

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app, run_in_terminal
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.shortcuts import CompleteStyle
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"The shell needs prompt_toolkit, not installed here: run `{install_line('sql')}`. Without it, give statements "
        "with --command or on standard input."
    ) from error

_WORD = re.compile(r'"[^"]*$|\w*$')
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = (
    "select distinct from where group by having order limit offset as and or not in is null like ilike between case "
    "when then else end join left right full outer cross using on union all except intersect with recursive values "
    "explain describe show tables asc desc nulls first last over partition filter qualify cast interval true false "
    "count sum avg min max coalesce now date_trunc extract unnest"
)
_KEYWORDS = _WORDS.split()
_LEFT = "Ctrl-D ends the shell on an empty line. Enter ; to run this text, or press Ctrl-C to drop it."


def ask_on(session: SqlSession) -> None:
    """Run what the user enters, until Ctrl-D or the command to end. Raises what the first request raises."""
    tables = session.tables()
    prompt: PromptSession[str] = PromptSession(
        history=_history(),
        completer=_Names(tables),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        multiline=Condition(lambda: not is_whole(get_app().current_buffer.text)),
        prompt_continuation="...> ",
        key_bindings=_keys(),
    )
    typer.echo(f"{len(tables)} tables. A statement ends with ;  \\? lists the commands. Ctrl-D ends the shell.")
    while True:
        try:
            text = prompt.prompt("sql> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            typer.echo(r"\q")  # the prompt of the terminal's shell begins a line
            return
        if not _ran(session, text):
            return


def _ran(session: SqlSession, text: str) -> bool:
    """Run and print each statement up to the first failure. Returns whether the shell goes on."""
    try:
        for part in parts_of(text):
            if (said := session.run(part)) is None:
                return False
            if said:
                typer.echo(said)
    except KeyboardInterrupt:
        typer.echo("Cancelled.", err=True)
    except StatelineError as error:
        typer.echo(f"error: {error.problem.detail if isinstance(error, RequestError) else error}", err=True)
    return True


def _keys() -> KeyBindings:
    """Return a Ctrl-D that says what to do when it comes after a text. There it would delete nothing."""
    keys = KeyBindings()

    def is_after_text() -> bool:
        document = get_app().current_buffer.document
        return bool(document.text) and document.is_cursor_at_the_end

    @keys.add("c-d", filter=Condition(is_after_text))
    def _(event: KeyPressEvent) -> None:
        run_in_terminal(lambda: typer.echo(_LEFT))

    return keys


def _history() -> History:
    """Return the history in the user's state directory. Without such a directory, it ends with the shell."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "stateline"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path := state / "sql_history").touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


class _Names(Completer):
    """Completes commands, tables, columns and keywords."""

    def __init__(self, tables: Mapping[str, Sequence[str]]) -> None:
        columns = dict.fromkeys(column for columns in tables.values() for column in columns)
        self._tables = [(_spelled(name), "table") for name in tables]
        self._names = [*self._tables, *((_spelled(name), "column") for name in columns)]

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.lstrip().startswith("\\"):
            command, space, word = before.lstrip().partition(" ")
            names = self._tables if space else [(name, about) for name, about in COMMANDS.items() if " " not in name]
            yield from _matching(word if space else command, names)
            return
        found = _WORD.search(before)
        word = "" if found is None else found[0]
        keywords = [(name if word.islower() else name.upper(), "") for name in _KEYWORDS]
        yield from _matching(word, [*self._names, *keywords])


def _matching(word: str, names: Iterable[tuple[str, str]]) -> Iterator[Completion]:
    for name, about in names:
        if name.lower().startswith(word.lower()):
            yield Completion(name, -len(word), display_meta=about)


def _spelled(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name not in _KEYWORDS else quoted(name)
