"""The results of an inspection of a state directory (`inspection.py`): values, thread-safe, none of them changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stateline_store.engines.engine import Commit
from stateline_store.layout import Layout
from stateline_store.position import Position, TopicPartition

Level: TypeAlias = Literal["state directory", "application", "task"]
State: TypeAlias = Literal["damaged", "not readable", "newer format"]


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """The reason why a part cannot be shown. The message says what to do."""

    path: Path
    state: State
    message: str


@dataclass(frozen=True, slots=True)
class OtherFile:
    """Something beside the stores. ``trash`` is the rest of a deletion (the next opening removes it). A ``journal`` is
    the progress of a change of the directory. ``other`` is unknown to Stateline. `size_bytes` is its size on disk, with
    everything below it."""

    path: Path
    what: Literal["trash", "journal", "other"]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoreReport:
    """One database. `format_version`, `commit` and `approximate_entries` are None if it cannot be opened.

    `layout` is None if the database says none, or cannot be opened. Then `timestamped` follows from the directory's
    name alone. `kind` is None if the database cannot be opened, and key-value if it says no layout (`layout.py`).
    """

    name: str
    path: Path
    timestamped: bool
    size_bytes: int
    kind: str | None = None
    layout: Layout | None = None
    format_version: int | None = None
    commit: Commit | None = None
    approximate_entries: int | None = None
    problem: UnreadablePart | None = None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task. `locked`: whether a process owns it now, None if that is unknown. `owner_pid` is its process id, None
    if the task is free or the owner has not said it. `offset_checkpoint` and `topics` (topic → topic id) are None
    without such a file. `positions` are those of ``<store>.position`` files, by store."""

    task_id: str
    path: Path
    locked: bool | None
    owner_pid: int | None
    stores: tuple[StoreReport, ...]
    offset_checkpoint: Mapping[TopicPartition, int] | None
    positions: Mapping[str, Position]
    topics: Mapping[str, str] | None
    others: tuple[OtherFile, ...]
    problems: tuple[UnreadablePart, ...]


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """One application's directory: its tasks in order of their numbers, and its other files."""

    application_id: str
    path: Path
    tasks: tuple[TaskReport, ...]
    others: tuple[OtherFile, ...] = ()
    problems: tuple[UnreadablePart, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """The content of a directory, and its level in a state directory."""

    path: Path
    level: Level
    applications: tuple[ApplicationReport, ...]

    @property
    def tasks(self) -> Iterator[tuple[ApplicationReport, TaskReport]]:
        """All tasks, each with its application."""
        return ((application, task) for application in self.applications for task in application.tasks)

    @property
    def problems(self) -> Iterator[UnreadablePart]:
        """All parts that are damaged or cannot be read."""
        for application in self.applications:
            yield from application.problems
            for task in application.tasks:
                yield from task.problems
                yield from (store.problem for store in task.stores if store.problem)
