"""What the demo shows: bars and a live line on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_PLAIN_INTERVAL_S = 5.0  # between two plain lines of progress


def ranking_line(place: int, row: Mapping[str, Any]) -> str:
    """A row of the ranking that `flights.ranking` makes."""
    what = f"{row['mean']:5.2f} min, {row['flights']:>6,} flights, {row['minutes']:>7,} min in all"
    return f"{place:>2}. {row['airport']} {row['carrier']}  {what}  {row['airline']}, {row['airport_name']}"


class Bars:
    """Named counters that run towards a total."""

    def __init__(self, progress: Progress | None, names: Mapping[str, int], console: Console) -> None:
        self._progress = progress
        self._console = console
        self._totals = dict(names)
        self._done = dict.fromkeys(names, 0)
        self._tasks = {name: progress.add_task(name, total=n) for name, n in names.items()} if progress else {}
        self._said_at, self._said = time.monotonic(), ""

    def set(self, name: str, done: int) -> None:
        """Move one counter."""
        self._done[name] = done
        if self._progress is not None:
            self._progress.update(self._tasks[name], completed=done)
        elif time.monotonic() - self._said_at >= _PLAIN_INTERVAL_S:
            self.say()

    def say(self) -> None:
        """One plain line if anything has changed; nothing on a terminal, where the bars are."""
        counts = [f"{name} {self._done[name]:,} of {total:,}" for name, total in self._totals.items()]
        line = f"  {', '.join(counts)}"
        if self._progress is None and line != self._said:
            self._said_at, self._said = time.monotonic(), line
            self._console.print(line, markup=False, soft_wrap=True)


class Screen:
    """Where the demo prints. One thread uses it, except that `say` may be called from any."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def say(self, line: str = "") -> None:
        """One line."""
        # soft_wrap: the terminal wraps lines, so that a request stays in one piece and can be copied.
        self._console.print(line, markup=False, soft_wrap=True)

    def headline(self, line: str) -> None:
        """A line that begins something new."""
        self._console.print()
        self._console.print(Text(line, style="bold"), soft_wrap=True)

    def request(self, curl: str, answer: str) -> None:
        """A request and its answer."""
        self._console.print(Text(f"$ {curl}", style="cyan"), soft_wrap=True)
        self.say(f"  {answer}")

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Bars]:
        """Counters to move while the block runs."""
        if not self._console.is_terminal:
            bars = Bars(None, totals, self._console)
            yield bars
            bars.say()
            return
        columns = (TextColumn("  {task.description:<13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            yield Bars(progress, totals, self._console)

    @contextmanager
    def live_line(self) -> Iterator[Callable[[str], None]]:
        """A line that changes while the block runs: call what comes back with its new text, as often as you like."""
        if self._console.is_terminal:
            with self._console.status("") as status:
                yield lambda line: status.update(Text(line))
            return
        said_at = -_PLAIN_INTERVAL_S

        def say_at_times(line: str) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= 2 * _PLAIN_INTERVAL_S:
                said_at = time.monotonic()
                self.say(line)

        yield say_at_times
