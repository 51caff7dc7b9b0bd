"""Find and delete undeclared stores in a state directory: renamed ones, and those of earlier code.

Their files stay, because nobody knows whether the rows exist elsewhere. A start warns, and `stateline stores --delete`
frees the space.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from stateline.deployment.stores.discarding import discarding, store_places
from stateline_store import DoesNotExistError, LockedError, RetryLaterError, StateDirectory
from stateline_store.files.relocation_journal import journal_path


@dataclass(frozen=True, slots=True)
class Leftover:
    """The tasks that have files of a store, and the size of the files in bytes."""

    tasks: tuple[str, ...]
    size: int

    @property
    def described(self) -> str:
        """``3 tasks, 12.5 MB``"""
        return f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}, {self.size / 1e6:.1f} MB"


def leftovers(directory: StateDirectory, declared: Container[str]) -> dict[str, Leftover]:
    """Undeclared stores on disk, by name. Reads only. Raises `RetryLaterError` if a directory is unreadable."""
    found: dict[str, Leftover] = {}
    if not directory.application.is_dir():
        return found
    for task in directory.all_tasks():
        for name in sorted(stores_on_disk(directory.task(task))):
            if name not in declared:
                known = found.get(name, Leftover((), 0))
                found[name] = Leftover((*known.tasks, task), known.size + _size(store_places(directory, task, name)))
    return dict(sorted(found.items()))


def told(found: Mapping[str, Leftover], target: str) -> str:
    """The warning of these stores."""
    names = ", ".join(f"{name} ({each.described})" for name, each in found.items())
    return (
        f"The state directory has stores that the application does not declare: {names}. Their files stay. To delete "
        f"one, stop the application on this machine and run `stateline stores {target} --delete NAME`."
    )


def delete_leftover(directory: StateDirectory, name: str, declared: Container[str], target: str) -> Leftover:
    """Delete the files of this store in every task. Returns what there was.

    Holds the locks of all its tasks. Raises `LockedError` if a process has one of them: nothing is deleted then. Raises
    `DoesNotExistError` if the store is declared or does not exist, and `RetryLaterError` if the file system refuses or
    a relocation is unfinished.
    """
    if name in declared:
        raise DoesNotExistError(
            f"The application declares {name!r}, so it is no leftover. `stateline reset {target} --store {name}` makes "
            "it again from its input."
        )
    if (found := leftovers(directory, declared)).get(name) is None:
        others = ", ".join(found) or "none"
        raise DoesNotExistError(f"{directory.application} has no files of a store {name!r}. Leftovers: {others}.")
    with discarding(directory), ExitStack() as held:
        if journal_path(directory).exists():
            raise RetryLaterError(
                f"A relocation of stores in {directory.application} was interrupted. Start the application once, which "
                "finishes it, then delete the store."
            )
        try:
            locks = {task: held.enter_context(directory.lock_task(task)) for task in found[name].tasks}
        except LockedError as error:
            raise LockedError(
                f"{name!r} is not deleted: {error} Stop the application's workers on this machine first."
            ) from error
        for lock in locks.values():
            directory.delete_store(lock, name)
    return found[name]


def stores_on_disk(task: Path) -> set[str]:
    below = task / "rocksdb"
    databases = {path.name.removesuffix("-v2") for path in below.iterdir()} if below.is_dir() else set[str]()
    own = {path.name for path in task.iterdir() if path.is_dir() and path.name != below.name}
    return {name for name in databases | own if not name.startswith(".")}  # a dot marks an interrupted deletion


def _size(places: Iterable[Path]) -> int:
    size = 0
    for file in (Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in names):
        with suppress(FileNotFoundError):  # just compacted or deleted
            size += file.lstat().st_size
    return size
