"""Copies of stores from another machine: their content, the place where they arrive, and the move to their task.

    <application>/copies/<task>/              0o750; of the process that receives from another node
    <application>/copies/<task>.<instance>/   the same, of a worker that fetches a backup
        copy.json                             the arriving files, as the other end has announced them
        <task>/<store>/                       the database's files, whole or in part; names as in `directory.py`
        whole                                 empty: everything is there and was checked

    copy.json := {"format": 1, "source": text, "topics": {topic: topic id}, "parts": [part …], "files": {path: bytes}}

The files are those of a checkpoint (`checkpoints.py`), each up to the length that counts. `source` names the directory
of the sender. A table never changes under its name, and logs and the manifest only grow. So arrived files of one source
are kept, over restarts too, and continued. Each file is checked against the sender's digest of the whole file
(`copied_files.py`). On disk: never change.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stateline_store.errors import DamagedDataError, NewerFormatError, RetryLaterError
from stateline_store.files.directory import STORES, directory_name, has_stores, make_directory
from stateline_store.files.durable_files import refused, replace_file, sync_directory
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import TopicPartition
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart
from stateline_store.steps import reached

COPIES = "copies"  # on disk: never change
_MANIFEST, _WHOLE = "copy.json", "whole"  # on disk: never change
_DELETED = ".deleted-"  # on disk: never change
_FORMAT = 1
_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]+|[0-9]+\.(sst|log)")
# A disk is not filled up: so much of it stays free for those that write there already.
_KEPT_FREE = 0.05


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """The stores of one task in another directory. `files` has the bytes of each file by its path, which begins with
    the `directory` of its part. `topics` has the ids of the topics that the stores were made from. Thread-safe: it
    never changes."""

    source: str
    topics: Mapping[str, str]
    parts: tuple[CheckpointPart, ...]
    files: Mapping[str, int]

    @classmethod
    def of(cls, source: str, topics: Mapping[str, str], parts: Sequence[CheckpointPart], linked: Path) -> StoreCopy:
        """Return the copy of these parts of a snapshot, linked in this directory. Raises `RetryLaterError`."""
        files: dict[str, int] = {}
        for part in parts:
            try:
                for entry in os.scandir(linked / part.directory):
                    files[f"{part.directory}/{entry.name}"] = part.lengths.get(entry.name, entry.stat().st_size)
            except OSError as error:
                raise refused(linked / part.directory, "read", error) from error
        return cls(source, topics, tuple(parts), files)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(self.files.values())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, as it is sent and kept."""
        parts = [part.to_json() for part in self.parts]
        told = {"source": self.source, "topics": dict(self.topics), "parts": parts, "files": dict(self.files)}
        return {"format": _FORMAT, **told}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StoreCopy:
        """Read the JSON object. Raises `NewerFormatError` for a newer version, `DamagedDataError` for anything else,
        and for names that no database's files have, because those files would lie elsewhere."""
        try:
            if int(value["format"]) != _FORMAT:
                raise NewerFormatError.of("The copy", f"format {value['format']}", str(_FORMAT))
            parts = tuple(CheckpointPart.from_json(part) for part in value["parts"])
            topics = {str(topic): str(topic_id) for topic, topic_id in value["topics"].items()}
            files = {str(path): int(size) for path, size in value["files"].items()}
            found = cls(str(value["source"]), topics, parts, files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedDataError(f"{value!r:.200} is no copy of stores: {error!r}.") from error
        folders = {part.directory for part in parts}
        for path, size in files.items():
            folder, _, name = path.rpartition("/")
            if folder not in folders or not _FILE.fullmatch(name) or size < 0:
                raise DamagedDataError(f"{path!r:.200} of {size} bytes is no file of a store that is copied.")
        return found

    def check_stores(self, task_id: str, wanted: Mapping[str, bool], partition: int) -> None:
        """Raise `DamagedDataError` unless the copy has some of these stores of this task, and nothing else."""
        told = [(part.store, part.partition, part.directory) for part in self.parts]
        names = {name: directory_name(name, timestamped=stamped) for name, stamped in wanted.items()}
        expected = {(name, partition, f"{task_id}/{folder}") for name, folder in names.items()}
        if not told or not expected.issuperset(told) or len({*told}) != len(told):
            raise DamagedDataError(f"The other node sends {told!r:.200}, not {expected!r:.200}.")


class Declared(NamedTuple):
    """The declaration that an arriving store must fit. `changelog` is None for a store without one."""

    layout: Layout
    types: StoreTypes
    changelog: TopicPartition | None


class CopyDirectory:
    """The place where the copy of one task arrives. For one thread at a time. The calls take as long as the disk does.
    All may raise `RetryLaterError` when the file system refuses."""

    def __init__(self, application: Path, task_id: str, instance: str = "") -> None:
        """Do nothing on disk. A worker that fetches gives its `instance`, so that its place is its own."""
        self.path = application / COPIES / (f"{task_id}.{instance}" if instance else task_id)
        self._arrived = self.path / task_id  # its stores, as the task's directory has them below `STORES`

    def begin(self, copy: StoreCopy) -> None:
        """Prepare for this copy, or continue it. Deletes files of another source, and files that the copy has not.
        Raises `RetryLaterError` also if the disk has too little room."""
        make_directory(self.path.parent)
        known = self._known()
        if known is None or known.source != copy.source:
            self.remove()
        with self._refused("prepared"):
            (self.path / _WHOLE).unlink(missing_ok=True)  # before anything else goes
            for part in copy.parts:
                make_directory(self.path / part.directory)
            self._delete_others(copy)
            for found in self._files():
                size = copy.files.get(str(found.relative_to(self.path)), -1)
                if found.name != _MANIFEST and found.stat().st_size > size:
                    found.unlink()
            self._check_room(copy)
        replace_file(self.path / _MANIFEST, json.dumps(copy.to_json()).encode(), only_writer=True)

    def check(self, copy: StoreCopy, declared: Mapping[str, Declared]) -> None:
        """Check the arrived files as their opening will. Raises `DamagedDataError`, or `TopologyError` for stores that
        do not fit their declaration. Nothing of the copy can be used then."""
        for part in copy.parts:
            wanted = declared[part.store]
            with Checkpoint(self.path, part) as opened:  # compares the commit and its Position
                wanted.layout.check(opened.layout, self.path / part.directory)
                if opened.types is not None:
                    wanted.types.check(opened.types, self.path / part.directory)
                if wanted.changelog is not None and wanted.changelog not in opened.commit.offsets:
                    raise DamagedDataError(f"{part.directory} does not say how much of {wanted.changelog} it has.")
        with self._refused("written"):
            for part in copy.parts:
                sync_directory(self.path / part.directory)
        replace_file(self.path / _WHOLE, b"", only_writer=True)
        reached("copy:whole")

    def place(self, task: Path, ids: Mapping[str, str]) -> bool:
        """Move the arrived stores into the task's directory, which the caller has locked, and delete the rest here.
        Returns whether there was a copy of these topics.

        Returns False, and moves nothing, if one of the stores exists already. A task without stores gets all of them in
        one step: a crash leaves all or none. If it has other stores, each copied store moves by itself: for stores
        with a changelog alone, because a crash may leave some of them here.
        """
        copy = self._known()
        is_whole = copy is not None and (self.path / _WHOLE).exists()
        if copy is None or not is_whole or any(copy.topics.get(topic) != each for topic, each in ids.items()):
            return False
        below, arrived = task / STORES, [self.path / each.directory for each in copy.parts]
        if any((below / each.name).exists() or not each.exists() for each in arrived):
            return False
        make_directory(task)
        with self._refused("moved"):
            if not has_stores(task):
                sync_directory(self._arrived)
                os.rename(self._arrived, below)  # an empty directory may be there
                sync_directory(task)
                reached("copy:stores-placed")
            else:
                for each in arrived:
                    os.rename(each, below / each.name)
                    sync_directory(below)
                    reached("copy:store-placed")
        self.remove()
        return True

    def remove(self) -> None:
        """Delete all arrived files."""
        with self._refused("deleted"):
            shutil.rmtree(self.path)

    def _known(self) -> StoreCopy | None:
        """Return the arriving copy, None if that cannot be read."""
        try:
            return StoreCopy.from_json(json.loads((self.path / _MANIFEST).read_bytes()))
        except (OSError, ValueError, DamagedDataError, NewerFormatError):
            return None

    def _delete_others(self, copy: StoreCopy) -> None:
        """Delete all files and directories here besides the manifest and those of the copy's parts. A check that was
        interrupted leaves some, and so do stores that the copy has no longer."""
        parts = {self.path / part.directory for part in copy.parts}
        folders = {part.parent for part in parts}
        for folder in (self.path, *folders):
            for other in {*folder.iterdir()} - parts - folders - {self.path / _MANIFEST}:
                if other.is_dir():
                    shutil.rmtree(other)
                else:
                    other.unlink()

    def _files(self) -> list[Path]:
        return [Path(folder) / name for folder, _, names in os.walk(self.path) for name in names]

    def _check_room(self, copy: StoreCopy) -> None:
        there = sum(found.stat().st_size for found in self._files())
        disk = shutil.disk_usage(self.path)
        if (left := copy.size_bytes - there) > disk.free - disk.total * _KEPT_FREE:
            raise RetryLaterError(f"{self.path} has no room for {left} bytes more: {disk.free} are free.")

    @contextmanager
    def _refused(self, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if done != "deleted":
                raise
        except OSError as error:
            raise refused(self.path, done, error) from error


def remove_unwanted(application: Path, wanted: Callable[[str, str], bool], before_s: float) -> list[str]:
    """Delete arrived files that were not touched since (`os.stat`'s seconds). `wanted` is asked with their task and
    their worker, empty for a copy of another node. Returns the names of their places. Files that cannot be deleted
    stay."""
    swept = []
    try:
        entries = list(os.scandir(application / COPIES))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(application / COPIES, "read", error) from error
    for entry in entries:
        task, _, instance = entry.name.partition(".")
        if entry.stat().st_mtime < before_s and not wanted(task, instance):
            with suppress(OSError):
                _delete(Path(entry.path))
                swept.append(entry.name)
    return swept


def _delete(path: Path) -> None:
    """Delete a place where files arrive. A worker that begins to fetch there meanwhile gets a new one."""
    gone = path.with_name(f"{_DELETED}{path.name.removeprefix(_DELETED)}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
