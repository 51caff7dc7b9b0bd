"""A task's stores that are fetched from a backup: several files at once, and what came before only once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateline import InputRecord, StoreView, serdes, stores
from stateline.backup.cut import find_cut
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, fetch, place
from stateline.client.backups import BackupStore
from stateline.dsl.app import App
from stateline_store import IsolationLevel, RetryLaterError, StateDirectory, StoreContext, TransactionalStore
from stateline_store.rocksdb.options import Tuning
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.store_copies import CopyDirectory
from support.run.patience import HANGING_S
from support.written_backups import write_backup

MANY_TABLES = Tuning(write_buffer_bytes=64 * 1024, level_base_bytes=256 * 1024)
APP = App("app")


@APP.process(
    APP.topic("in", key=serdes.string, value=serdes.string),
    stores=[APP.store(stores.key_value("kept", key=serdes.string, value=serdes.string, logged=False))],
)
def keep_nothing(record: InputRecord, kept: StoreView) -> None:
    del record, kept


class Noted(BackupLocation):
    """Notes how many pieces are read, at most at once, and bytes of tables. From `limit` pieces on it refuses."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "app")
        self.now = self.most = self.pieces = self.refused = self.of_tables = 0
        self.limit = 1_000_000
        self._noting = threading.Lock()

    def checked_piece(self, digest: str, size: int, name: str) -> Iterator[bytes]:
        with self._noting:
            self.now, self.pieces = self.now + 1, self.pieces + 1
            self.most = max(self.most, self.now)
            self.of_tables += size if name.endswith(".sst") else 0
            if self.pieces > self.limit:
                self.refused += 1
                raise RetryLaterError("It is away.")
        time.sleep(0.01)
        yield from super().checked_piece(digest, size, name)
        with self._noting:
            self.now -= 1


class ReadOnly(Noted):
    @contextlib.contextmanager
    def lease(self, backup_id: str) -> Iterator[float]:
        raise RetryLaterError("Nothing may be written.")
        yield 0.0


class Paused(Noted):
    """Sends the first half of each piece, and the rest when it `goes_on`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def checked_piece(self, digest: str, size: int, name: str) -> Iterator[bytes]:
        content = b"".join(super().checked_piece(digest, size, name))
        yield content[: size // 2]
        self.begun.set()
        assert self.goes_on.wait(HANGING_S)
        yield content[size // 2 :]


@pytest.fixture
def location(tmp_path: Path) -> Noted:
    rows = [(b"%06d" % n, b"%d" % n * 20) for n in range(20_000)]
    write_backup(tmp_path / "there", str(tmp_path / "backups"), "kept", {0: rows}, MANY_TABLES)
    return Noted(str(tmp_path / "backups"))


def fetched(location: BackupLocation, here: Path) -> Backup:
    (backup,) = backups(location)
    fetch(location, backup, "0_0", APP.topology(), CopyDirectory(here, "0_0"))
    return backup


def test_several_files_come_at_once(location: Noted, tmp_path: Path) -> None:
    backup = fetched(location, tmp_path / "here")
    assert location.pieces == sum(map(len, backup.digests.values()))
    assert location.most > 1


def test_pieces_that_came_before_come_once(location: Noted, tmp_path: Path) -> None:
    location.limit = 2
    with pytest.raises(RetryLaterError, match="away"):
        fetched(location, tmp_path / "here")
    location.limit = 1_000_000
    backup = fetched(location, tmp_path / "here")
    assert location.pieces - location.refused == sum(map(len, backup.digests.values()))
    again = location.pieces
    fetched(location, tmp_path / "here")
    assert location.pieces == again


def test_a_byte_that_changed_on_this_disk_comes_again(location: Noted, tmp_path: Path) -> None:
    backup, before = fetched(location, tmp_path / "here"), location.pieces
    path = tmp_path / "here" / "copies" / "0_0" / max(backup.copy.files, key=lambda each: backup.copy.files[each])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    fetched(location, tmp_path / "here")
    assert location.pieces == before + 1


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({"lower": "000100", "upper": "000120"}, range(100, 121)),
        ({"prefix": "0599"}, range(59_900, 60_000)),
        ({"lower": "060000"}, range(0)),
        ({"lower": "2", "upper": "1"}, range(0)),
    ],
    ids=["range", "prefix", "beyond the last", "empty"],
)
def test_a_range_of_keys_fetches_the_tables_that_may_have_them(
    tmp_path: Path, given: dict[str, Any], numbers: range
) -> None:
    chance = random.Random(2)
    values = [(b"%06d" % n, chance.randbytes(50).hex().encode()) for n in range(60_000)]
    write_backup(tmp_path / "there", str(tmp_path / "backups"), "kept", {0: values}, MANY_TABLES)
    location = Noted(str(tmp_path / "backups"))
    cut = find_cut(location.url)
    store = BackupStore(location, cut, "kept")
    rows = [row for batch in store.batches(**given) for row in batch.select(["key", "value"]).to_pylist()]
    assert [(row["key"].encode(), row["value"].encode()) for row in rows] == [values[number] for number in numbers]
    tables = sum(size for path, size in cut.manifests[0].copy.files.items() if path.endswith(".sst"))
    assert location.of_tables < tables / 2
    assert store.to_arrow().num_rows == len(values)


def test_a_location_that_may_only_be_read_is_restored_from(location: Noted, tmp_path: Path) -> None:
    fetched(ReadOnly(location.url), tmp_path / "here")


def placed_rows(directory: StateDirectory) -> int:
    store = APP.topology().stores["kept"].build()
    assert isinstance(store, TransactionalStore)
    store.init(StoreContext("0_0", directory.task("0_0")))
    with contextlib.closing(store), store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
        return len(dict(rows))


def test_two_workers_of_a_node_that_fetch_one_task_share_no_file(location: Noted, tmp_path: Path) -> None:
    paused, directory = Paused(location.url), StateDirectory(tmp_path / "here", "app")
    (backup,) = backups(location)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(place, paused, backup, "0_0", APP.topology(), directory, {}, "worker-0")
        assert paused.begun.wait(HANGING_S)
        try:
            size = place(location, backup, "0_0", APP.topology(), directory, {}, "worker-1")
        finally:
            paused.goes_on.set()
        assert (size, first.result()) == (backup.copy.size_bytes, None)
    assert placed_rows(directory) == 20_000
    assert not [*(directory.application / "copies").iterdir()]


def test_a_fetch_that_is_stopped_ends_within_a_piece_and_is_continued(location: Noted, tmp_path: Path) -> None:
    paused, stopped = Paused(location.url), threading.Event()
    directory, (backup,) = StateDirectory(tmp_path / "here", "app"), backups(location)
    no_ids: dict[str, str] = {}
    task = "0_0", APP.topology(), directory, no_ids, "worker-0"
    with ThreadPoolExecutor(1) as other:
        first = other.submit(place, paused, backup, *task, stopped)
        assert paused.begun.wait(HANGING_S)
        stopped.set()
        paused.goes_on.set()
        with pytest.raises(RetryLaterError, match="not fetched any more"):
            first.result()
    assert paused.pieces <= 4, "those that came at once"
    assert place(location, backup, *task) == backup.copy.size_bytes
    assert placed_rows(directory) == 20_000


class StoppedAtTheEnd(Noted):
    """Sets `stopped` when all files are here."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stopped = threading.Event()

    @contextlib.contextmanager
    def lease(self, backup_id: str) -> Iterator[float]:
        with super().lease(backup_id) as at_s:
            yield at_s
        self.stopped.set()


def test_a_fetch_that_is_stopped_after_its_last_piece_places_nothing(location: Noted, tmp_path: Path) -> None:
    late, directory = StoppedAtTheEnd(location.url), StateDirectory(tmp_path / "here", "app")
    (backup,) = backups(location)
    with pytest.raises(RetryLaterError, match="not fetched any more"):
        place(late, backup, "0_0", APP.topology(), directory, {}, "worker-0", late.stopped)
    assert not (directory.task("0_0") / "rocksdb").exists()
    pieces = location.pieces
    assert place(location, backup, "0_0", APP.topology(), directory, {}, "worker-0") == backup.copy.size_bytes
    assert location.pieces == pieces, "its files were kept"
