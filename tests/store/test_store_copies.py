"""A store's files that arrive from another machine: whatever interrupts them, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    KeyValueStore,
    NewerFormatError,
    Position,
    RetryLaterError,
    StatelineError,
    StoreContext,
    TopicPartition,
    TopologyError,
    store_path,
)
from stateline_store.layout import StoreTypes
from stateline_store.rocksdb.options import Tuning
from stateline_store.snapshots import checkpoints, copied_files, store_copies
from stateline_store.snapshots.checkpoints import CheckpointPart, link_database
from stateline_store.snapshots.copied_files import ArrivingFile, LeavingFile
from stateline_store.snapshots.store_copies import CopyDirectory, Declared, StoreCopy, remove_unwanted

LOG, IN = TopicPartition("log", 0), TopicPartition("in", 0)
TYPES = StoreTypes("string", "string")
DECLARED = {"kept": Declared(KeyValueStore("kept").layout, TYPES, LOG)}
IDS = {"log": "id of log"}
MANY_TABLES = Tuning(write_buffer_bytes=64 * 1024, level_base_bytes=256 * 1024)
PIECE = 10_000


class Sent(NamedTuple):
    """What another machine has, and the rows that are committed in it."""

    copy: StoreCopy
    folder: Path
    rows: dict[bytes, bytes]


def opened(task: Path, types: StoreTypes = TYPES) -> KeyValueStore:
    store = KeyValueStore("kept", tuning=MANY_TABLES)
    store.init(StoreContext("0_0", task, LOG, types=types))
    return store


def linked(store: KeyValueStore, there: Path, name: str, rows: dict[bytes, bytes], source: str = "there") -> Sent:
    (there / name / "0_0").mkdir(parents=True)
    lengths = link_database(store_path(there / "0_0", "kept", timestamped=False), there / name / "0_0/kept")
    position = store.position(IsolationLevel.READ_COMMITTED)
    part = CheckpointPart("kept", 0, "0_0/kept", store.commit_number, store.committed_at_ms, position, lengths)
    return Sent(StoreCopy.of(source, IDS, [part], there / name), there / name, dict(rows))


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sent, Sent]:
    """A copy of a store, and one of the same store later, after flushes and compactions."""
    there = tmp_path_factory.mktemp("there")
    store, rows, made = opened(there / "0_0"), dict[bytes, bytes](), []
    for number in range(30):
        for key in range(number * 7, number * 7 + 90):
            rows[b"%d" % (key % 300)] = value = b"%d" % number * 40
            store.put(b"%d" % (key % 300), value)
        store.commit({LOG: number}, position=Position.of({IN: number}))
        if number in (19, 29):
            made.append(linked(store, there, f"at-{number}", rows))
    store.close()
    return made[0], made[1]


def arrive(sent: Sent, copies: CopyDirectory, *, most: int = -1, damage: str = "") -> int:
    """Bring all of it, or so many pieces; how many came."""
    copies.begin(sent.copy)
    pieces = 0
    for name, size in sent.copy.files.items():
        arriving = ArrivingFile(copies.path / name, size)
        with arriving, LeavingFile(sent.folder / name, size, arriving.offset) as leaving:
            while piece := leaving.read(PIECE):
                if pieces == most:
                    return pieces
                pieces += 1
                arriving.add(bytes([piece[0] ^ 1]) + piece[1:] if name == damage else piece)
            arriving.finish(leaving.digest)
    return pieces


def placed(copies: CopyDirectory, here: Path) -> dict[bytes, bytes]:
    """Its rows in its place, where it goes on: a commit more, and it is opened once more."""
    assert copies.place(here / "0_0", IDS)
    store = opened(here / "0_0")
    with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as found:
        rows = dict(found)
    number, offset = store.commit_number, store.committed_offset(LOG)
    assert store.position(IsolationLevel.READ_COMMITTED) == Position.of({IN: offset or 0})
    store.put(b"more", b"1")
    store.commit({LOG: 1000})
    store.close()
    store.init(StoreContext("0_0", here / "0_0", LOG, types=TYPES))
    assert (store.get(b"more"), store.commit_number) == (b"1", number + 1)
    store.close()
    return rows


def test_a_copy_has_the_rows_the_position_and_the_offset_of_its_commit_and_goes_on(
    sent: tuple[Sent, Sent], tmp_path: Path
) -> None:
    copies = CopyDirectory(tmp_path, "0_0")
    arrive(sent[0], copies)
    copies.check(sent[0].copy, DECLARED)
    assert placed(copies, tmp_path) == sent[0].rows
    assert not copies.path.exists()


def test_what_is_interrupted_at_any_piece_goes_on_there_and_comes_once(sent: tuple[Sent, Sent], tmp_path: Path) -> None:
    pieces = arrive(sent[0], CopyDirectory(tmp_path, "0_9"))
    for most in range(pieces):
        copies = CopyDirectory(tmp_path / str(most), "0_0")
        assert arrive(sent[0], copies, most=most) == most
        assert not copies.place(tmp_path / "nowhere", IDS), "half of it takes no place"
        assert arrive(sent[0], copies) == pieces - most
        copies.check(sent[0].copy, DECLARED)
        assert placed(copies, tmp_path / str(most)) == sent[0].rows


def test_what_was_interrupted_goes_on_with_a_later_commit_of_the_same_directory(
    sent: tuple[Sent, Sent], tmp_path: Path
) -> None:
    first, later = sent
    copies = CopyDirectory(tmp_path, "0_0")
    arrive(first, copies)
    copies.check(first.copy, DECLARED)
    fresh = arrive(later, CopyDirectory(tmp_path, "0_9"))
    assert arrive(later, copies) < fresh, "tables that both have are kept"
    assert not copies.place(tmp_path / "0_0", IDS), "the earlier one was whole, this one is not looked through yet"
    copies.check(later.copy, DECLARED)
    assert placed(copies, tmp_path) == later.rows


def test_nothing_is_kept_of_another_directory(sent: tuple[Sent, Sent], tmp_path: Path) -> None:
    copies = CopyDirectory(tmp_path, "0_0")
    pieces = arrive(sent[0], copies)
    other = sent[0]._replace(copy=replace(sent[0].copy, source="another"))
    assert arrive(other, copies) == pieces


def test_a_byte_that_is_another_one_is_found_in_every_file_and_the_file_comes_again(
    sent: tuple[Sent, Sent], tmp_path: Path
) -> None:
    for number, name in enumerate(sent[0].copy.files):
        copies = CopyDirectory(tmp_path / str(number), "0_0")
        with pytest.raises(DamagedDataError, match="did not arrive as it was sent"):
            arrive(sent[0], copies, damage=name)
        assert not (copies.path / name).exists()
        with_damage = copies.path / name
        arrive(sent[0], copies)
        data = bytearray(with_damage.read_bytes())
        data[len(data) // 2] ^= 1  # on the disk, after it had come
        with_damage.write_bytes(data)
        with pytest.raises(DamagedDataError):
            arrive(sent[0], copies)
        arrive(sent[0], copies)
        copies.check(sent[0].copy, DECLARED)
        assert placed(copies, tmp_path / str(number)) == sent[0].rows


class DiedError(Exception):
    pass


def dies_at(step: int) -> Callable[[str], None]:
    """In place of `reached`: the process dies at its step of this number."""
    steps = iter(range(10_000))

    def reached(name: str) -> None:
        if next(steps) == step:
            raise DiedError(name)

    return reached


def test_a_process_that_dies_at_any_step_leaves_what_the_next_one_goes_on_with(
    sent: tuple[Sent, Sent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: whatever happened, in the end the store has its rows, and before that none."""

    def life(copies: CopyDirectory, here: Path) -> None:
        arrive(sent[0], copies)
        copies.check(sent[0].copy, DECLARED)
        copies.place(here / "0_0", IDS)

    step, died = 0, True
    while died:
        here = tmp_path / str(step)
        copies = CopyDirectory(here, "0_0")
        for module in (store_copies, copied_files):
            monkeypatch.setattr(module, "reached", dies_at(step))
        try:
            life(copies, here)
            died = False
        except DiedError as error:
            is_placed = str(error) == "copy:stores-placed"
            assert (here / "0_0/rocksdb/kept").exists() is is_placed
        monkeypatch.undo()
        if died and not is_placed:
            life(copies, here)
        store = opened(here / "0_0")
        with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as found:
            assert dict(found) == sent[0].rows
        store.close()
        step += 1
    assert step > 10


def test_a_process_that_is_killed_while_it_checks_stops_no_later_copy(sent: tuple[Sent, Sent], tmp_path: Path) -> None:
    copies = CopyDirectory(tmp_path, "0_0")
    arrive(sent[0], copies)
    child = os.fork()
    if child == 0:
        with patch.object(checkpoints.Checkpoint, "_open", _dies):  # once the files are linked
            copies.check(sent[0].copy, DECLARED)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [*copies.path.glob(".reading-*/*")]
    for later in sent:
        arrive(later, copies)
        copies.check(later.copy, DECLARED)
        assert not [*copies.path.glob(".reading-*")]
    assert placed(copies, tmp_path) == sent[1].rows


def _dies(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_while_it_places_leaves_all_stores_of_the_task_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the others: a task that has stores begins with those."""
    names, there = ["one", "two"], tmp_path / "there"
    (there / "linked" / "0_0").mkdir(parents=True)
    copy = StoreCopy.of("there", IDS, [_linked_alone(there, name) for name in names], there / "linked")
    declared = {name: Declared(KeyValueStore(name).layout, TYPES, None) for name in names}
    at, died = 0, True
    while died:
        here, at = tmp_path / f"here-{at}", at + 1
        copies = CopyDirectory(here, "0_0")
        arrive(Sent(copy, there / "linked", {}), copies)
        copies.check(copy, declared)
        with monkeypatch.context() as patched:
            patched.setattr(store_copies, "reached", dies_at(at - 1))
            try:
                assert copies.place(here / "0_0", IDS)
                died = False
            except DiedError:
                pass
        assert sorted(found.parent.name for found in (here / "0_0/rocksdb").glob("*/CURRENT")) in ([], names)
    assert at > 1


def _linked_alone(there: Path, name: str) -> CheckpointPart:
    """A store without a changelog, which has one row."""
    store = KeyValueStore(name)
    store.init(StoreContext("0_0", there / "0_0", types=TYPES))
    store.put(b"k", b"1")
    store.commit({}, position=Position.of({IN: 1}))
    lengths = link_database(store_path(there / "0_0", name, timestamped=False), there / "linked/0_0" / name)
    position = store.position(IsolationLevel.READ_COMMITTED)
    store.close()
    return CheckpointPart(name, 0, f"0_0/{name}", 1, 0, position, lengths)


def test_a_store_of_another_kind_or_of_other_types_is_refused_before_it_takes_its_place(
    sent: tuple[Sent, Sent], tmp_path: Path
) -> None:
    copies = CopyDirectory(tmp_path, "0_0")
    arrive(sent[0], copies)
    there = DECLARED["kept"]
    for other, kind in (
        (there._replace(layout=replace(there.layout, kind="session")), TopologyError),
        (there._replace(types=StoreTypes("string", "int64")), TopologyError),
        (there._replace(changelog=TopicPartition("other", 0)), DamagedDataError),
    ):
        with pytest.raises(kind):
            copies.check(sent[0].copy, {"kept": other})
        assert not copies.place(tmp_path / "0_0", IDS)
    part = replace(sent[0].copy.parts[0], position=Position.of({IN: 20}))  # more than the files have
    with pytest.raises(DamagedDataError, match="shows commit"):
        copies.check(replace(sent[0].copy, parts=(part,)), DECLARED)


def test_what_is_of_other_topics_or_in_the_way_of_a_store_is_not_placed(
    sent: tuple[Sent, Sent], tmp_path: Path
) -> None:
    copies = CopyDirectory(tmp_path, "0_0")
    arrive(sent[0], copies)
    copies.check(sent[0].copy, DECLARED)
    assert not copies.place(tmp_path / "0_0", {"log": "id of another"})
    assert not copies.place(tmp_path / "0_0", {**IDS, "more": "id"})
    opened(tmp_path / "0_0").close()
    assert not copies.place(tmp_path / "0_0", IDS)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"0_0/kept/../../../passwd": 1}},
        {"files": {"/etc/passwd": 1}},
        {"files": {"0_0/other/CURRENT": 1}},
        {"files": {"0_0/kept/.lock": 1}},
        {"files": {"0_0/kept/CURRENT": -1}},
        {"files": 3},
        {"parts": [{}]},
        {"format": 2},
        {"format": None},
    ],
)
def test_names_that_lie_elsewhere_and_other_formats_are_refused(
    sent: tuple[Sent, Sent], change: dict[str, object]
) -> None:
    told = json.loads(json.dumps(sent[0].copy.to_json()))
    assert StoreCopy.from_json(told) == sent[0].copy
    with pytest.raises((DamagedDataError, NewerFormatError)):
        StoreCopy.from_json({**told, **change})


def test_only_the_stores_that_were_asked_for_are_taken(sent: tuple[Sent, Sent]) -> None:
    copy = sent[0].copy
    copy.check_stores("0_0", {"kept": False, "other": True}, 0)
    for task, wanted, partition in (
        ("0_1", {"kept": False}, 0),
        ("0_0", {"kept": True}, 0),
        ("0_0", {"kept": False}, 1),
        ("0_0", {"other": False}, 0),
    ):
        with pytest.raises(DamagedDataError):
            copy.check_stores(task, wanted, partition)
    with pytest.raises(DamagedDataError):
        replace(copy, parts=()).check_stores("0_0", {"kept": False}, 0)


def test_a_disk_without_room_is_not_filled(
    sent: tuple[Sent, Sent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=disk.total // 20 + 1000))
    with pytest.raises(RetryLaterError, match="has no room"):
        CopyDirectory(tmp_path, "0_0").begin(sent[0].copy)


def test_a_file_that_is_shorter_than_it_was_and_an_offset_behind_its_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"123")
    with LeavingFile(path, 5, 0) as leaving:
        assert leaving.read(5) == b"123"
        with pytest.raises(DamagedDataError, match="shorter"):
            leaving.read(5)
    with pytest.raises(InvalidArgumentError):
        LeavingFile(path, 3, 4)
    with pytest.raises(StatelineError):
        LeavingFile(tmp_path / "none", 3, 0)


def test_what_nobody_wants_any_more_is_swept_and_what_was_touched_is_not(tmp_path: Path) -> None:
    swept, stay = ("0_1", "0_3.worker-1", ".deleted-0_4"), ("0_0", "0_3.worker.0")
    for name in (*swept, *stay, "0_2"):
        (tmp_path / "copies" / name / "more").mkdir(parents=True)
    for name in (*swept, *stay):
        os.utime(tmp_path / "copies" / name, (100, 100))
    wanted = {("0_0", ""), ("0_3", "worker.0")}
    assert {*remove_unwanted(tmp_path, lambda *each: each in wanted, 200)} == {*swept}
    assert {*os.listdir(tmp_path / "copies")} == {*stay, "0_2"}
    assert remove_unwanted(tmp_path / "none", lambda *each: each in wanted, 200) == []
