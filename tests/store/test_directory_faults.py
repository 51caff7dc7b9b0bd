"""Full disks, read-only disks, other users' directories, damaged files: said by name, and nothing else is touched."""

import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from stateline_store import (
    CallerError,
    DamagedDataError,
    ExpiringKeyValueStore,
    KeyValueStore,
    PoisonedError,
    RetryLaterError,
    StateDirectory,
    StoreContext,
    TopicPartition,
    clean,
    settle_places,
)
from stateline_store.rocksdb.options import Tuning
from support.processes.small_disk import fill, free, new_small_disk, read_only
from support.rocksdb import offsets_of
from support.run.patience import HANGING_S

SMALL = Tuning(write_buffer_bytes=64 * 1024, level_base_bytes=256 * 1024)
CHANGELOG = TopicPartition("changelog", 0)
DISK_MIB = 8


def open_store(directory: StateDirectory, task: str = "0_0", *, expires: bool = False) -> KeyValueStore:
    store = ExpiringKeyValueStore("s", ttl_ms=1, tuning=SMALL) if expires else KeyValueStore("s", tuning=SMALL)
    store.init(StoreContext(task, directory.task(task)))
    return store


def make_store(directory: StateDirectory, task: str, value: bytes = b"v") -> None:
    store = open_store(directory, task)
    store.put(b"k", value)
    store.commit({CHANGELOG: 1})
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    with new_small_disk(tmp_path / "disk", DISK_MIB) as found:
        yield found


def fill_up(store: KeyValueStore, rows: list[tuple[bytes, bytes]]) -> int:
    """Commit row after row until the disk is full; how many commits went through."""
    committed = 0
    try:
        for row in rows:
            store.put(*row)
            store.commit({CHANGELOG: committed + 1})
            committed += 1
    except PoisonedError as error:
        assert re.search(r"0_0/rocksdb/s(-v2)? failed.*No space left", str(error))  # noqa: PT017  # how far it came matters
        return committed
    raise AssertionError("The disk never was full.")


def test_a_store_does_not_try_to_flush_when_it_closes_on_a_full_disk_and_keeps_what_was_committed(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = StateDirectory(disk, "app")
    make_store(directory, "0_0", b"kept")
    store = open_store(directory)
    store.put(b"more", b"row")
    store.commit({CHANGELOG: 2})
    fill(disk)
    store.close()
    assert "RocksDB failed while closing" not in caplog.text
    free(disk)
    again = open_store(directory)
    assert (again.get(b"k"), again.get(b"more")) == (b"kept", b"row")
    again.close()


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("size", [7_000, 20_000, 50_000])  # each fills the disk at another step of RocksDB's
def test_a_commit_on_a_full_disk_poisons_and_after_space_is_freed_the_store_works_on(
    disk: Path, size: int, expires: bool
) -> None:
    directory = StateDirectory(disk, "app")
    make_store(directory, "0_1", b"other")
    store = open_store(directory, expires=expires)
    filler = disk / "filler"
    filler.write_bytes(bytes(DISK_MIB * 1024 * 1024 // 2))
    rows = [(b"%04d" % i, random.Random(i).randbytes(size)) for i in range(1000)]
    committed = fill_up(store, rows)
    with pytest.raises(PoisonedError):
        store.get(b"00")
    store.close()
    filler.unlink()
    store = open_store(directory, expires=expires)
    assert committed > 20
    assert store.committed_offset(CHANGELOG) == committed
    assert list(store.all()) == rows[:committed]
    store.put(b"00", b"on")
    store.commit({CHANGELOG: committed + 1})
    store.close()
    store = open_store(directory, expires=expires)
    assert (store.get(b"00"), store.committed_offset(CHANGELOG)) == (b"on", committed + 1)
    store.close()
    other = open_store(directory, "0_1")
    assert dict(other.all()) == {b"k": b"other"}
    other.close()


@contextmanager
def small_files(_: Path) -> Iterator[None]:
    """Let no file of this process grow over 40 KB for the block: a flush fails, and no commit does before it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize(("refuse", "why"), [(read_only, "Read-only file system"), (small_files, "File too large")])
def test_after_a_flush_that_failed_commits_poison_and_the_store_works_on_when_the_disk_does(
    disk: Path, refuse: Callable[[Path], AbstractContextManager[None]], why: str, expires: bool
) -> None:
    directory = StateDirectory(disk, "app")
    store = open_store(directory, expires=expires)
    committed = 0
    with refuse(disk), pytest.raises(PoisonedError, match=why):  # noqa: PT012  # how far it came matters
        for committed in range(1000):
            store.put(b"%04d" % committed, bytes(1000))
            store.commit({CHANGELOG: committed + 1})
    store.close()
    store = open_store(directory, expires=expires)
    assert store.committed_offset(CHANGELOG) in (committed, committed + 1)
    assert [key for key, _ in store.all()] == [b"%04d" % i for i in range(store.committed_offset(CHANGELOG) or 0)]
    store.put(b"more", b"row")
    store.commit({CHANGELOG: 2000})
    assert store.get(b"more") == b"row"
    store.close()


def test_opening_on_a_full_disk_is_refused_by_name_and_succeeds_when_space_is_freed(disk: Path) -> None:
    directory = StateDirectory(disk, "app")
    make_store(directory, "0_0")
    fill(disk)
    for task in ("0_0", "0_1"):
        with pytest.raises(RetryLaterError, match=rf"{task}.*[Ff]ree some space"):
            open_store(directory, task)
    with pytest.raises(RetryLaterError, match=r"kafka-streams-process-metadata cannot be written.*Free some space"):
        directory.process_id()
    assert not [name for name in os.listdir(directory.application) if "process-metadata" in name]
    free(disk)
    store = open_store(directory)
    assert (dict(store.all()), store.committed_offset(CHANGELOG)) == ({b"k": b"v"}, 1)
    store.close()
    make_store(directory, "0_1")
    assert directory.process_id() == directory.process_id()


def test_a_full_disk_can_be_cleaned(disk: Path) -> None:
    directory = StateDirectory(disk, "app")
    for task in ("0_0", "0_1"):
        make_store(directory, task)
        directory.lock_task(task).release()
    fill(disk)
    assert clean(directory, ["0_1"], 0, 2**50, lambda task: False) == ["0_0"]
    store = open_store(directory, "0_1")
    assert dict(store.all()) == {b"k": b"v"}
    store.close()


def test_a_relocation_on_a_full_disk_is_refused_before_anything_moves(disk: Path) -> None:
    directory = StateDirectory(disk, "app")
    make_store(directory, "0_0")
    for task in ("0_0", "1_0"):
        directory.lock_task(task).release()
    fill(disk)
    with pytest.raises(RetryLaterError, match=r"relocation.*[Ff]ree some space"):
        settle_places(directory, {"s": 1}, automatic=True)
    free(disk)
    assert settle_places(directory, {"s": 0}, automatic=False).moved == ()
    assert len(settle_places(directory, {"s": 1}, automatic=True).moved) == 1
    store = open_store(directory, "1_0")
    assert dict(store.all()) == {b"k": b"v"}
    store.close()


def test_a_read_only_disk_is_named_and_works_again_when_it_is_writable(disk: Path) -> None:
    directory = StateDirectory(disk, "app")
    make_store(directory, "0_0")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for refused in (
        lambda: directory.lock_task("0_0"),
        lambda: directory.lock_task("global/worker-0"),
        lambda: directory.process_id(),
        lambda: open_store(directory),
        lambda: settle_places(directory, {"s": 0}, automatic=True),
    ):
        with pytest.raises(RetryLaterError, match=r"app/.*read-only"):
            refused()
    with pytest.raises(RetryLaterError, match=r"other cannot be created.*read-only"):
        StateDirectory(disk, "other")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    store = open_store(directory)
    assert dict(store.all()) == {b"k": b"v"}
    store.close()


_STRANGER = """
import os, sys; from pathlib import Path
from stateline_store import *
os.setegid(65534); os.seteuid(65534)
state_dir = Path(sys.argv[1])
def store():
    KeyValueStore("s").init(StoreContext("0_0", state_dir / "app/0_0"))
for call in (
    lambda: StateDirectory(state_dir, "new"),
    lambda: StateDirectory(state_dir, "app").tasks(),
    lambda: StateDirectory(state_dir, "app").lock_task("0_0"),
    lambda: StateDirectory(state_dir, "app").process_id(),
    store,
):
    try:
        call()
    except RetryLaterError as error:
        print(error)
"""


def test_a_directory_of_another_user_is_refused_by_path_owner_and_what_to_do() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        state_dir = Path(name)
        state_dir.chmod(0o755)
        directory = StateDirectory(state_dir, "app")
        make_store(directory, "0_0")
        ran = subprocess.run(
            [sys.executable, "-c", _STRANGER, name], capture_output=True, text=True, check=True, timeout=HANGING_S
        )
        lines = ran.stdout.splitlines()
        assert len(lines) == 5
        for line, path in zip(
            lines, ("new", "app", "app/0_0", "app/kafka-streams-process-metadata", "app/0_0"), strict=True
        ):
            assert line.startswith(f"{state_dir}/{path}")
            assert "belongs to root (0), and this process runs as" in line
        store = open_store(directory)
        assert dict(store.all()) == {b"k": b"v"}
        store.close()


def test_a_newer_format_is_refused_and_other_stores_are_not_touched(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    for task in ("0_0", "0_1"):
        make_store(directory, task)
    store = open_store(directory)
    offsets_of(store)[b"format_version"] = struct.pack(">I", 2)
    store.close()
    before = {path: path.read_bytes() for path in directory.task("0_1").rglob("*") if path.is_file()}
    with pytest.raises(CallerError, match=r"0_0/rocksdb/s has format version 2.*run the newer version"):
        open_store(directory)
    assert {path: path.read_bytes() for path in before} == before


PLACES = 80


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[StateDirectory, dict[bytes, bytes]]:
    """A store whose rows are in table files, beside another one."""
    directory, rnd = StateDirectory(tmp_path_factory.mktemp("flushed"), "app"), random.Random(1)
    make_store(directory, "0_1", b"other")
    rows = {b"%05d" % i: rnd.randbytes(rnd.choice((0, 10, 200))) + b"x" * 50 for i in range(3000)}
    store = open_store(directory)
    for part in range(3):
        store.put_all(list(rows.items())[part::3])
        store.commit({CHANGELOG: part})
        store.close()
        store = open_store(directory)  # flushes what the log held
    store.close()
    return directory, rows


def flipped(directory: StateDirectory, number: int) -> Path:
    """Flip bits of one byte of one table: spread over data, index, filter, properties and the last bytes of all."""
    rnd = random.Random(number)
    table = rnd.choice(sorted(directory.store("0_0", "s", timestamped=False).glob("*.sst")))
    data = bytearray(table.read_bytes())
    at = rnd.randrange(len(data)) if number % 2 else len(data) - 1 - rnd.randrange(min(len(data), 1500))
    data[at] ^= rnd.randrange(1, 256)
    table.write_bytes(data)
    return table


@pytest.mark.parametrize("chunk", range(4))
def test_a_flipped_byte_in_a_table_is_damage_or_changes_nothing(
    flushed: tuple[StateDirectory, dict[bytes, bytes]], tmp_path: Path, chunk: int
) -> None:
    original, rows = flushed
    damaged = 0
    for number in range(chunk * PLACES // 4, (chunk + 1) * PLACES // 4):
        shutil.copytree(original.application, tmp_path / str(number) / "app")
        directory = StateDirectory(tmp_path / str(number), "app")
        flipped(directory, number)
        damaged += not _reads_right_or_says_so(directory, rows)
        other = open_store(directory, "0_1")
        assert dict(other.all()) == {b"k": b"other"}
        other.close()
        shutil.rmtree(tmp_path / str(number))
    assert damaged > PLACES // 8


def _reads_right_or_says_so(directory: StateDirectory, rows: dict[bytes, bytes]) -> bool:
    """Whether all reads were right; those that were not must have said so."""
    store = KeyValueStore("s", tuning=SMALL)
    reads: list[Callable[[], object]] = [
        lambda: dict(store.all()),
        lambda: dict(store.all(reverse=True)),
        lambda: {key: store.get(key) for key in rows},
    ]
    messages = []
    try:
        store.init(StoreContext("0_0", directory.task("0_0")))
    except DamagedDataError as error:
        messages, reads = [str(error)], []
    for read in reads:
        try:
            assert read() == rows
        except DamagedDataError as error:
            messages.append(str(error))
    store.close()
    assert all("0_0/rocksdb/s is damaged" in message for message in messages)
    return not messages
