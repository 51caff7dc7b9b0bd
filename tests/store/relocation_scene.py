"""A state directory with stores of several tasks, and what must be true of it wherever the stores lie.

As a program it is one start of an application: ``settle DIR automatic|refused STORE=ORDINAL…`` prints how many stores
it moved; ``own DIR TASK`` holds a task until its input ends.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from stateline_store import (
    KeyValueStore,
    Position,
    StateDirectory,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    settle_places,
)
from stateline_store.files.offset_checkpoint import read_offset_checkpoint, read_position, write_offset_checkpoint
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.scan import EVERY_KEY

APP = "app"
Places = Mapping[str, int]  # store → ordinal of its subtopology


def make(store: str) -> KeyValueStore:
    """Stores of a name with a `t` are timestamped ones: those live in `<store>-v2`."""
    return TimestampedKeyValueStore(store) if "t" in store else KeyValueStore(store)


def changelog(store: str, partition: int) -> TopicPartition:
    return TopicPartition(f"{APP}-{store}-changelog", partition)


def rows(store: str, partition: int) -> dict[bytes, bytes]:
    return {f"{store}-{partition}-{n}".encode(): str(n).encode() for n in range(20)}


def offset(store: str, partition: int) -> int:
    return 100 * sum(store.encode()) + partition


def position(store: str, partition: int) -> Position:
    return Position({f"input-{store}": {partition: offset(store, partition) + 7}})


def build(state_dir: Path, places: Places, partitions: int) -> StateDirectory:
    """Every store, with rows, offset and Position of its own, and all the files beside it."""
    directory = StateDirectory(state_dir, APP)
    for name, ordinal in places.items():
        for partition in range(partitions):
            write_store(directory, name, f"{ordinal}_{partition}")
    return directory


def write_store(directory: StateDirectory, name: str, task: str) -> None:
    """One store partition with what belongs to it."""
    partition, folder = int(task.split("_")[1]), directory.task(task)
    with directory.lock_task(task):
        store = make(name)
        store.init(StoreContext(task, folder))
        store.put_all(rows(name, partition).items())
        at = {changelog(name, partition): offset(name, partition)}
        store.commit(at, position=position(name, partition))
        store.close()
        write_offset_checkpoint(folder / ".checkpoint", read_offset_checkpoint(folder / ".checkpoint") | at)
        file = f"0\n1\ninput-{name} {partition} {offset(name, partition) + 7}\n"
        (folder / f"{name}.position").write_text(file)
        topics = folder / "topics.json"
        known = json.loads(topics.read_bytes()) if topics.exists() else {}
        topics.write_text(json.dumps(known | {f"input-{name}": f"id-{name}"}))


def check(directory: StateDirectory, places: Places, partitions: int) -> None:
    """Everything is where `places` says, with all that belongs to it, and nowhere else."""
    wanted: dict[str, list[str]] = {}
    for name, ordinal in places.items():
        for partition in range(partitions):
            wanted.setdefault(f"{ordinal}_{partition}", []).append(name)
    for task in directory.tasks():
        check_task(directory, task, sorted(wanted.pop(task, [])))
    assert not wanted
    assert not (directory.application / ".relocation.json").exists()


def check_task(directory: StateDirectory, task: str, names: list[str]) -> None:
    folder, partition = directory.task(task), int(task.split("_")[1])
    databases = sorted(path.name for path in folder.glob("rocksdb/*"))
    assert databases == sorted(f"{name}-v2" if "t" in name else name for name in names)
    assert sorted(path.name for path in folder.glob("*.position")) == sorted(f"{name}.position" for name in names)
    expected = {changelog(name, partition): offset(name, partition) for name in names}
    assert read_offset_checkpoint(folder / ".checkpoint") == expected
    topics = json.loads((folder / "topics.json").read_bytes()) if names else {}
    for name in names:
        assert read_position(folder / f"{name}.position") == position(name, partition)
        assert topics[f"input-{name}"] == f"id-{name}"
        check_store(directory, task, name)
    for notice in folder.glob("*.notice"):
        assert notice.name.removesuffix(".notice").removesuffix("-v2") in names


def check_store(directory: StateDirectory, task: str, name: str) -> None:
    """Read without opening it as an owner, which would take the `.position` file in."""
    partition, timestamped = int(task.split("_")[1]), make(name).timestamped
    with OfflineStore(directory.store(task, name, timestamped=timestamped)) as store, store.scan(EVERY_KEY) as scan:
        assert {key: value[8 * timestamped :] for key, value in scan} == rows(name, partition)
        assert store.commit.offsets == {changelog(name, partition): offset(name, partition)}
        assert store.commit.position == position(name, partition)


def main(program: str, state_dir: str, *arguments: str) -> None:
    directory = StateDirectory(Path(state_dir), APP)
    if program == "own":
        lock = directory.lock_task(arguments[0])
        sys.stdout.write("owned\n")
        sys.stdout.flush()
        sys.stdin.read()
        lock.release()
        return
    places = dict(argument.split("=") for argument in arguments[1:])
    settled = settle_places(
        directory, {name: int(at) for name, at in places.items()}, automatic=arguments[0] == "automatic"
    )
    sys.stdout.write(f"{len(settled.moved)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
