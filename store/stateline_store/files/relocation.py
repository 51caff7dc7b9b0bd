"""Move stores to the directories of their subtopologies' new numbers (relocation, KIP-816).

A task's directory is ``<subtopology>_<partition>``, and a changed topology changes the numbers. At a start, before any
task is opened, each store on disk is moved to the subtopology that now has a store of its name: ``0_3/rocksdb/s`` →
``1_3/rocksdb/s``. `relocation_journal.py` has the moved files, and the behaviour in a crash.

Two cases are refused without a change, because only the user knows which store is right: a store in two tasks of one
partition, and a target that already has files of the store. A store that no subtopology names stays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateline_store.errors import InvalidArgumentError, LockedError, RetryLaterError, TopologyError
from stateline_store.files.directory import StateDirectory, TaskLock
from stateline_store.files.durable_files import refused
from stateline_store.files.relocation_journal import (
    Move,
    carry_out,
    databases,
    holds_something,
    journal_path,
    position_file,
    read_journal,
    write_journal,
)
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

_LOCK = ".relocation.lock"  # on disk: never change
_WAIT_MS = 60_000  # a move takes milliseconds; a longer one hangs on its disk
_LOOK_AGAIN_S = 0.02

Listing = Mapping[str, frozenset[str]]
"""Task id → names of its files: ``rocksdb/s/``, ``s.position``. Directories end in a slash. Empty ones are left out."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a start: the moves, and the (task, store) pairs on disk that the topology has no store for."""

    moved: tuple[Move, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()


def settle_places(
    directory: StateDirectory, wanted: Mapping[str, int], *, automatic: bool, wait_ms: int = _WAIT_MS
) -> Settled:
    """Move every store to its place, before any task is opened. `wanted`: store → ordinal of its subtopology now.

    An interrupted relocation is finished first, for any topology. `automatic` is ``automatic.state.relocation``:
    without it, stores at other places raise `TopologyError`. If several processes start at once, one moves the stores,
    and the others wait for up to `wait_ms`.

    Raises `TopologyError` for refused cases (rules above), `LockedError` if a live process holds a task or a relocation
    lasts too long, and `RetryLaterError` if the file system refuses. Then nothing is moved, unless a journal was
    written. The next start continues it.
    """
    with _alone(directory, wait_ms):
        finished = _finish(directory)
        listing = read_listing(directory)
        moves = plan_moves(listing, wanted, directory)
        if moves and not automatic:
            raise _refusal(directory, moves)
        _relocate(directory, moves)
    return Settled((*finished, *moves), tuple(unknown_stores(listing, wanted)))


def plan_relocation(directory: StateDirectory, wanted: Mapping[str, int]) -> list[Move]:
    """Return the moves of every store to the subtopology that `wanted` names for it, none if all are in place. It reads
    names only, and locks nothing: it serves displays. Raises `TopologyError` for refused cases (rules above)."""
    return plan_moves(read_listing(directory), wanted, directory)


def relocate(directory: StateDirectory, moves: Sequence[Move], *, wait_ms: int = _WAIT_MS) -> None:
    """Do all of these moves. After a crash, the next start finishes them. Raises as `settle_places`."""
    with _alone(directory, wait_ms):
        _finish(directory)
        _relocate(directory, moves)


def read_listing(directory: StateDirectory) -> Listing:
    """Return the files that the tasks hold now. Raises `RetryLaterError` naming the task that cannot be read."""
    listing: dict[str, frozenset[str]] = {}
    for task in directory.tasks():
        folder = directory.task(task)
        try:
            below = folder / "rocksdb"
            paths = [*folder.iterdir(), *(below.iterdir() if below.is_dir() else ())]
            full = [path for path in paths if holds_something(path)]
            listing[task] = frozenset(f"{path.relative_to(folder)}{'/' * path.is_dir()}" for path in full)
        except OSError as error:
            raise refused(folder, "read", error) from error
    return listing


def plan_moves(listing: Listing, wanted: Mapping[str, int], directory: StateDirectory) -> list[Move]:
    """Return the moves of `plan_relocation` for a listing. `directory` only names paths."""
    moves = []
    for store, ordinal in sorted(wanted.items()):
        rows = _rows_of(store)
        holders: dict[int, str] = {}  # partition → the task that holds this store's rows
        for task in (task for task, names in listing.items() if names & rows):
            other = holders.setdefault(TaskId.parse(task).partition, task)
            if other != task:
                raise _ambiguous(directory, listing, store, other, task)
        for partition, task in holders.items():
            target = str(TaskId(ordinal, partition))
            if task != target:
                moves.append(Move(store, task, target))
                _check_free(directory, listing, moves[-1])
    return moves


def unknown_stores(listing: Listing, wanted: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return (task, store) of the databases that no subtopology has a store for, in the listing's order."""
    found: dict[tuple[str, str], None] = {}  # each once, though it have a database of either format
    for task, names in listing.items():
        databases_there = (name for name in sorted(names) if name.startswith("rocksdb/") and name.count("/") == 2)
        for name in databases_there:
            store = name.removeprefix("rocksdb/").removesuffix("/").removesuffix("-v2")
            if store not in wanted:
                found[task, store] = None
    return list(found)


def _rows_of(store: str) -> frozenset[str]:
    """Return the names that show that a task holds this store. Its `.position` alone does not: Kafka Streams leaves
    it."""
    return frozenset(f"{name}/" for name in databases(store))


def _anything_of(store: str) -> frozenset[str]:
    return _rows_of(store) | {position_file(store)}


def _check_free(directory: StateDirectory, listing: Listing, move: Move) -> None:
    """Refuse a move if the target holds some of this store: rows, or a Position without rows."""
    if listing.get(move.target, frozenset()) & _anything_of(move.store):
        raise _ambiguous(directory, listing, move.store, move.source, move.target)


def _ambiguous(directory: StateDirectory, listing: Listing, store: str, task: str, other: str) -> TopologyError:
    def paths(of: str) -> str:
        return " and ".join(str(directory.task(of) / name) for name in sorted(listing[of] & _anything_of(store)))

    return TopologyError(
        f"Store {store!r} is in two tasks of one partition: {paths(task)}, and {paths(other)}. Only one can be right, "
        "and nothing was moved or deleted: move the other one out of the state directory, and start again."
    )


def _refusal(directory: StateDirectory, moves: Sequence[Move]) -> TopologyError:
    differences = "; ".join(
        f"store {move.store!r} is in {directory.task(move.source)} and should be in {directory.task(move.target)}"
        for move in moves
    )
    return TopologyError(
        f"The topology has other ordinals than the state directory: {differences}. Set "
        "automatic.state.relocation=true to have the stores moved, or run the topology that wrote them. "
        "No store was moved for it."
    )


def _finish(directory: StateDirectory) -> tuple[Move, ...]:
    if not journal_path(directory).exists():
        return ()
    entries = read_journal(directory)
    moves = tuple(entry.move for entry in entries)
    with _locked(directory, moves):
        carry_out(directory, entries)
    return moves


def _relocate(directory: StateDirectory, moves: Sequence[Move]) -> None:
    if not moves:
        return
    if len({(move.store, move.partition) for move in moves}) < len(moves):
        raise InvalidArgumentError(f"A store partition moves once at a time: {moves!r:.500}.")
    if strays := [move for move in moves if move.partition != TaskId.parse(move.target).partition]:
        raise InvalidArgumentError(f"A store stays with its partition: {strays!r:.500}.")
    with _locked(directory, moves):
        reached("relocation:tasks-locked")
        listing = read_listing(directory)  # again: an owner may have come and gone before the locks were taken
        for move in moves:
            if not listing[move.source] & _rows_of(move.store):
                raise RetryLaterError(f"{move.store!r} has left {directory.task(move.source)}. Plan the moves again.")
            _check_free(directory, listing, move)
        carry_out(directory, write_journal(directory, moves))


@contextlib.contextmanager
def _locked(directory: StateDirectory, moves: Sequence[Move]) -> Iterator[None]:
    """Lock all tasks that the moves touch. `LockedError` names the one that a live process holds."""
    with contextlib.ExitStack() as locks:
        for task in sorted({task for move in moves for task in (move.source, move.target)}):
            locks.enter_context(directory.lock_task(task))
        yield


@contextlib.contextmanager
def _alone(directory: StateDirectory, wait_ms: int) -> Iterator[None]:
    """Hold the lock of relocations in this directory."""
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            lock = TaskLock(directory.application / _LOCK)
            break
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise LockedError(f"A relocation has lasted longer than {wait_ms} ms: {error}") from error
            time.sleep(_LOOK_AGAIN_S)  # flock cannot be waited for with a bound
    with lock:
        yield
