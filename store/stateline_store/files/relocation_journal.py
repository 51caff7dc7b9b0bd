"""The moves of stores from task to task, with a journal and repeatable steps, so that no crash loses anything.

``<application>/.relocation.json`` (on disk: never change) exists from before the first step until after the last::

    {"version": 1, "moves": [{"store": "s", "from": "0_3", "to": "1_3", "offset": 17}]}

``offset`` is the store's entry in the ``.checkpoint`` of its old task when the move was decided, null for none. The
step writes the journal's offset, however often it is done. These files of a store move:

- its databases, ``rocksdb/<store>`` and ``rocksdb/<store>-v2``, and its own files in ``<store>/``,
- ``<store>.position``,
- its entry in ``.checkpoint``, found by the topic ``<application.id>-<store>-changelog``.

The entries of ``topics.json`` (topic → topic id) are copied. The commit notices are withdrawn first and removed last.
So readers of the old place are told, and the next `init` publishes the store at its new place. Names are unique, so
stores that change places never collide.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateline_store.errors import DamagedDataError, NewerFormatError, TopologyError
from stateline_store.files.commit_notice import CommitNotice
from stateline_store.files.directory import StateDirectory, holds_database, make_directory
from stateline_store.files.durable_files import refused, replace_file, sync_directory
from stateline_store.files.offset_checkpoint import OFFSET_CHECKPOINT, read_offset_checkpoint, write_offset_checkpoint
from stateline_store.position import TopicPartition
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

_VERSION = 1  # on disk: never change what 1 means
_JOURNAL = ".relocation.json"  # on disk: never change
_TOPICS = "topics.json"  # on disk: never change
_UNSURE = ""  # on disk: never change; the id of no topic, so that the stores of this one are taken for outdated
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Move:
    """One store partition, with its present task and the task that it belongs to."""

    store: str
    source: str
    target: str

    @property
    def partition(self) -> int:
        """The partition of both tasks."""
        return TaskId.parse(self.source).partition


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A move with its offset, None if the old task's `.checkpoint` had none."""

    move: Move
    offset: int | None


def databases(store: str) -> tuple[str, ...]:
    """Return the directories of a store's rows, below its task. Any of them means that the store is there."""
    own = () if store == "rocksdb" else (store,)  # that name is taken: below it are the others
    return (f"rocksdb/{store}", f"rocksdb/{store}-v2", *own)


def holds_something(path: Path) -> bool:
    """Return whether there is a file here, or a directory with rows: below `rocksdb` a database, else any file."""
    if path.parent.name == "rocksdb":
        return holds_database(path)
    return not path.is_dir() or any(path.iterdir())


def position_file(store: str) -> str:
    """Return the name of the store's Position file, below its task."""
    return f"{store}.position"


def journal_path(directory: StateDirectory) -> Path:
    """Return the path of the journal of a running relocation."""
    return directory.application / _JOURNAL


def read_journal(directory: StateDirectory) -> list[JournalEntry]:
    """Return the moves of an interrupted relocation, none without a journal. Raises `NewerFormatError` for a journal of
    a newer version, `DamagedDataError` for one that cannot be read."""
    path = journal_path(directory)
    try:
        document = json.loads(path.read_bytes())
        version = document["version"]
        entries = [_entry(move) for move in document["moves"]] if version == _VERSION else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(path, "read", error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error!r}): a relocation was interrupted and cannot go on by itself. Delete the file; "
            "the next start refuses whatever is in two places, and moves the rest."
        ) from error
    if version != _VERSION:
        raise NewerFormatError.of(path, f"version {version!r:.200}", f"up to {_VERSION}")
    return entries


def _entry(move: dict[str, Any]) -> JournalEntry:
    return JournalEntry(Move(move["store"], move["from"], move["to"]), move["offset"])


def write_journal(directory: StateDirectory, moves: Iterable[Move]) -> list[JournalEntry]:
    """Write the journal of these moves. From then on this start or another one does them. The tasks must be locked."""
    entries = [JournalEntry(move, _offset(directory, move)) for move in moves]
    document = {
        "version": _VERSION,
        "moves": [
            {"store": e.move.store, "from": e.move.source, "to": e.move.target, "offset": e.offset} for e in entries
        ],
    }
    replace_file(journal_path(directory), json.dumps(document, indent=2).encode())
    reached("relocation:journal-written")
    return entries


def carry_out(directory: StateDirectory, entries: Sequence[JournalEntry]) -> None:
    """Do the moves of the journal, or the rest of them, and remove it. The tasks must be locked.

    Raises `RetryLaterError` when the file system refuses, `TopologyError` if a store has been made at its target
    meanwhile. The journal and its stores stay then.
    """
    for entry in entries:
        _carry_out(directory, entry)
    try:
        journal_path(directory).unlink(missing_ok=True)
        sync_directory(directory.application)
    except OSError as error:
        raise refused(journal_path(directory), "removed", error) from error
    reached("relocation:journal-removed")


def _carry_out(directory: StateDirectory, entry: JournalEntry) -> None:
    move = entry.move
    source, target = directory.task(move.source), directory.task(move.target)
    try:
        notices = [path for name in (move.store, f"{move.store}-v2") if (path := source / f"{name}.notice").exists()]
        for notice in notices:
            CommitNotice(notice).withdraw()
        reached("relocation:notices-withdrawn")
        for name in databases(move.store):
            found = source / name
            if found.is_dir() and holds_something(found):  # else the store has none of it, or a crash came after this
                _rename(found, target / name)
                reached("relocation:database-moved")
        name = position_file(move.store)
        if (source / name).is_file():
            _rename(source / name, target / name)
        reached("relocation:position-moved")
        _move_offset(directory, entry)
        _copy_topics(source / _TOPICS, target / _TOPICS)
        reached("relocation:topics-copied")
        for notice in notices:
            notice.unlink(missing_ok=True)
        reached("relocation:notices-removed")
    except OSError as error:
        raise refused(source, f"moved to {target}", error) from error
    _log.info("Store %r moved from %s to %s", move.store, source, target)


def _rename(source: Path, target: Path) -> None:
    if target.exists() and holds_something(target):
        raise TopologyError(
            f"{source} was to be moved to {target}, and that exists now too. Nothing was deleted: keep the right one "
            "of the two, move the other one out of the state directory, and start again."
        )
    make_directory(target.parent)
    if target.is_dir():
        shutil.rmtree(target)  # it holds nothing
    os.rename(source, target)
    sync_directory(target.parent)
    sync_directory(source.parent)


def _offset(directory: StateDirectory, move: Move) -> int | None:
    return read_offset_checkpoint(directory.task(move.source) / OFFSET_CHECKPOINT).get(_changelog(directory, move))


def _changelog(directory: StateDirectory, move: Move) -> TopicPartition:
    return TopicPartition(f"{directory.application.name}-{move.store}-changelog", move.partition)


def _move_offset(directory: StateDirectory, entry: JournalEntry) -> None:
    """Write the target's entry first. A crash in between leaves the entry in both tasks, and the journal has the right
    one."""
    changelog = _changelog(directory, entry.move)
    for task, offset, step in (
        (entry.move.target, entry.offset, "relocation:offset-given"),
        (entry.move.source, None, "relocation:offset-taken"),
    ):
        path = directory.task(task) / OFFSET_CHECKPOINT
        old = read_offset_checkpoint(path)
        new = {tp: at for tp, at in old.items() if tp != changelog}
        if offset is not None:
            new[changelog] = offset
        if new != old:
            write_offset_checkpoint(path, new)
        reached(step)


def _copy_topics(source: Path, target: Path) -> None:
    """Merge the topic ids that the stores were made from. Two ids of one topic mean that it was made again, and that
    some store is of the old one.

    Then no id is right for all, and the task takes the topic for one that was made again.
    """
    new, old = _topics(source), _topics(target)
    merged = old | {topic: name if old.get(topic, name) == name else _UNSURE for topic, name in new.items()}
    if merged != old:
        replace_file(target, json.dumps(dict(sorted(merged.items())), indent=2).encode())


def _topics(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        _log.warning("%s cannot be read and counts as empty: %s", path, error)
        return {}
    return document if isinstance(document, dict) else {}
