"""`SqlSession`: the statements and commands of one shell or script."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stateline.cli.sql.printing import FORMATS, Form, printed
from stateline.cli.target import word_of
from stateline.client import Client
from stateline.sql.statement import split_statements
from stateline.sql.struct_types import quoted
from stateline_store import InvalidArgumentError

_COLUMNS = "select column_name, column_type from (describe {})"
COMMANDS = {
    r"\d": "lists the tables",
    r"\d TABLE": "shows the columns of a table",
    r"\x": "switches between a line for each row and a line for each value",
    r"\f FORMAT": f"prints rows as {', '.join(FORMATS)}",
    r"\timing": "switches the time of each statement on or off",
    r"\?": "lists these commands",
    r"\q": "ends the shell, as Ctrl-D on an empty line does",
}


class SqlSession:
    """Runs one statement or command at a time. For one thread."""

    def __init__(self, client: Client, form: Form) -> None:
        self._client = client
        self._form = form
        self._is_expanded = self._is_timed = False

    def run(self, part: str) -> str | None:
        """Return what a statement or a command prints. None: end the shell.

        Raises `InvalidArgumentError` for an unknown command, and what the client raises."""
        if not part.startswith("\\"):
            return self._rows(part)
        name, _, argument = part.partition(" ")
        argument = argument.strip().rstrip(";")
        match name.rstrip(";"):
            case r"\d":
                return self._rows(_COLUMNS.format(_table(argument)) if argument else "show tables")
            case r"\x":
                self._is_expanded = not self._is_expanded
                return f"A line for each {'value' if self._is_expanded else 'row'}."
            case r"\f":
                self._form = word_of(r"\f", argument, FORMATS)
                return ""
            case r"\timing":
                self._is_timed = not self._is_timed
                return f"Timing is {'on' if self._is_timed else 'off'}."
            case r"\?":
                return "\n".join(f"{command:<10} {about}" for command, about in COMMANDS.items())
            case r"\q":
                return None
        raise InvalidArgumentError(rf"{name} is no command: \? lists the commands.")

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of each table. Raises what the client raises."""
        rows = self._client.sql("show all tables")
        return {row["name"]: row["column_names"] for row in rows}

    def _rows(self, statement: str) -> str:
        begun_s = time.monotonic()
        answer = self._client.sql(statement)
        lasted_ms = (time.monotonic() - begun_s) * 1000
        text = printed(answer, self._form, expanded=self._is_expanded)
        return f"{text}\nTime: {lasted_ms:.1f} ms" if self._is_timed else text


def parts_of(text: str) -> Iterator[str]:
    """Yield the statements and commands of a text. A command goes to the end of its line. The last statement may lack
    its semicolon."""
    open_text = ""
    for line in text.removesuffix("\n").split("\n"):  # `splitlines` also breaks at characters inside of texts
        if not open_text and line.lstrip().startswith("\\"):
            yield line.strip()
            continue
        statements, open_text = split_statements(f"{open_text}{line}\n")
        yield from statements
        if open_text.lstrip().startswith("\\"):  # a command behind a statement
            yield open_text.strip()
            open_text = ""
    if open_text:
        yield open_text


def is_whole(text: str) -> bool:
    """Whether the text ends with a command or a semicolon, so that the shell can run it. An empty text is whole."""
    return text.lstrip().startswith("\\") or not split_statements(text)[1]


def _table(name: str) -> str:
    return name if name.startswith('"') else quoted(name)
