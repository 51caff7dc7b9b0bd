"""Which backups and files go: by the rules alone, and at a location."""

from __future__ import annotations

import json
import logging
import os
import random
import time
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline import InputRecord, StoreView, serdes, stores
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, refuse_forgotten
from stateline.backup.retention import Retention, sweep
from stateline.backup.writing import BackupWriter, digest_of
from stateline.dsl.app import App
from stateline.model.internal_topics import ConfiguredTopics
from stateline_store import DamagedDataError, DoesNotExistError, Position, RetryLaterError
from stateline_store.snapshots.backup import PIECE_BYTES, Backup, piece_sizes
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.store_copies import StoreCopy

RETENTION_MS = 1_000


def backup(number: int, node: str, places: list[int], digests: dict[str, str] | None = None) -> Backup:
    """Backup `number` of a node, made so many milliseconds after the epoch."""
    parts = tuple(CheckpointPart("s", place, f"0_{place}/s", 1, 1, Position(), {}) for place in places)
    copy = StoreCopy("here", {}, parts, dict.fromkeys(digests or {}, 3))
    named = {path: (digest,) for path, digest in (digests or {}).items()}
    return Backup(f"{number:09}", node, "app", number, "", {}, {}, {}, named, copy)


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from("ab"), st.sets(st.integers(0, 3), min_size=1))),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_the_newest_of_each_partition_and_young_ones_stay(made: list[tuple[int, str, set[int]]], keep: int) -> None:
    every = [
        backup(at, node, sorted(places)) for at, node, places in {(at, n): (at, n, p) for at, n, p in made}.values()
    ]
    order = sorted(every, key=lambda each: (each.id, each.node), reverse=True)
    rule = Retention(5_000, RETENTION_MS, keep)
    ids = [list(of_id) for _, of_id in groupby(order, key=attrgetter("id"))]
    gone = [each for of_id in ids for each, has_ended in zip(of_id, rule.ended(of_id), strict=True) if has_ended]
    left = [each for each in every if each not in gone]
    assert all(each.created_at_ms < 5_000 - RETENTION_MS for each in gone)
    for place in range(4):
        having = [each for each in order if any(part.partition == place for part in each.copy.parts)]
        assert all(each in left for each in having[:keep])
    for each in gone:
        for part in each.copy.parts:
            newer = [other for other in order[: order.index(each)] if part in other.copy.parts]
            assert len(newer) >= keep


def test_a_sweep_deletes_old_backups_and_files_that_none_names(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path), "app")
    now_ms = int(time.time() * 1000)
    for number, content in enumerate((b"one", b"two", b"new")):
        path = tmp_path / content.decode()
        path.write_bytes(content)
        digest = digest_of(path, 3)
        location.put_file(digest, path, 3)
        shared = {"0_0/s/000001.sst": digest}
        location.write(backup(now_ms - (3 - number) * 60_000, "a", [0], shared))
    rubbish = digest_of(tmp_path / "one", 2)
    location.put_file(rubbish, tmp_path / "one", 2)
    assert sweep(location, RETENTION_MS, 1).files == 0, "young files may be of a backup that is being written"
    assert len(location.manifests()) == 1
    assert {each.size for each in location.files()} == {2, 3}
    swept = sweep(location, RETENTION_MS, 1, left_alone_s=0)
    assert (swept.files, swept.bytes) == (3, 8)
    assert [each.digest for each in location.files()] == [digest]


def test_a_backup_that_somebody_reads_stays(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path), "app")
    for number in (1, 2):
        location.write(backup(number, "a", [0]))
    with location.lease("000000001"):
        assert sweep(location, RETENTION_MS, 1).manifests == ()
    assert sweep(location, RETENTION_MS, 1).manifests == (("000000001", "a"),)


def test_a_lease_of_a_reader_that_died_ends_after_a_day(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path), "app")
    with location.lease("000000001") as now_s:
        (lease,) = (tmp_path / "app" / "leases" / "000000001").iterdir()
        assert location.leased(now_s + 86_000) == {"000000001"}
        os.utime(lease, (now_s - 90_000, now_s - 90_000))
        assert location.leased(now_s) == set()


def test_a_sweep_deletes_the_rests_of_killed_processes(tmp_path: Path) -> None:
    location, app = BackupLocation(str(tmp_path), "app"), tmp_path / "app"
    location.write(backup(1, "a", [0]))
    rests = [
        app / "files" / f"{'0' * 64}#1",
        app / "backups" / "000000002" / "a.json#1",
        app / "leases" / "000000001" / "0123456789abcdef",
    ]
    empty = app / "backups" / "000000000"
    for path in rests:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    empty.mkdir()
    now_s = time.time()
    sweep(location, RETENTION_MS, 1)
    assert all(path.exists() for path in (*rests, empty)), "somebody may just write them"
    for path in (*rests, empty, rests[1].parent, rests[2].parent):
        os.utime(path, (now_s - 400_000, now_s - 400_000))
    sweep(location, RETENTION_MS, 1)
    assert not [path for path in (*rests, empty) if path.exists()]
    for path in (rests[1].parent, rests[2].parent):
        os.utime(path, (now_s - 400_000, now_s - 400_000))
    sweep(location, RETENTION_MS, 1)
    assert sorted(path.name for path in (*app.glob("backups/*"), *app.glob("leases/*"))) == ["000000001", "sweep"]


def test_a_leased_backup_keeps_its_files(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path), "app")
    for number in (1, 2):
        path = tmp_path / f"{number}"
        path.write_bytes(b"%03d" % number)
        location.put_file(digest_of(path, 3), path, 3)
        location.write(backup(number, "a", [0], {"0_0/s/000001.sst": digest_of(path, 3)}))
    with location.lease("000000001"):
        assert sweep(location, RETENTION_MS, 1, left_alone_s=0).files == 0
    assert sweep(location, RETENTION_MS, 1, left_alone_s=0).files == 1


def test_a_sweep_keeps_no_manifest_in_memory(tmp_path: Path) -> None:
    """Manifests of a node differ in a few files. Memory has each digest once."""
    location, now_ms = BackupLocation(str(tmp_path), "app"), int(time.time() * 1000)
    shared = {f"0_0/s/{number:06}.sst": f"{number:064x}" for number in range(1_000)}
    for number in range(20):
        location.write(backup(now_ms + number, "a", [0], {**shared, "0_0/s/CURRENT": f"{10_000 + number:064x}"}))
    tracemalloc.start()
    try:
        sweep(location, 3_600_000, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_500_000


def test_a_writer_rests_also_while_it_only_computes_digests(tmp_path: Path) -> None:
    """So after a restart, when nothing is new."""

    class Noted(Event):
        rested_s = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            self.rested_s += timeout or 0.0
            return self.is_set()

    location, linked = BackupLocation(str(tmp_path / "location"), "app", create=True), tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    for number in range(4):
        (linked / f"00000{number}.sst").write_bytes(random.Random(number).randbytes(8 * PIECE_BYTES))
    made = backup(int(time.time() * 1000), "a", [0], {f"0_0/s/00000{number}.sst": "" for number in range(4)})
    made = replace(made, copy=replace(made.copy, files=dict.fromkeys(made.copy.files, 8 * PIECE_BYTES)))
    BackupWriter(location, "a", 3_600_000, -1).write(made, tmp_path, Event())
    stopped, began_s = Noted(), time.thread_time()
    assert BackupWriter(location, "a", 3_600_000, -1).write(made, tmp_path, stopped)[1].files == 0
    worked_s = time.thread_time() - began_s
    assert stopped.rested_s > worked_s / 2


def test_a_writer_does_not_build_on_a_backup_that_may_be_deleted(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path / "location"), "app", create=True)
    linked = tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    (linked / "000001.sst").write_bytes(b"row")
    made = backup(int(time.time() * 1000) - RETENTION_MS, "a", [0], {"0_0/s/000001.sst": ""})
    first, done = BackupWriter(location, "a", RETENTION_MS, -1).write(made, tmp_path, Event())
    assert (done.files, done.all_files) == (1, 1)
    assert BackupWriter(location, "a", RETENTION_MS, -1).write(made, tmp_path, Event())[1].files == 1
    assert BackupWriter(location, "a", 10 * RETENTION_MS, -1).write(made, tmp_path, Event())[1].files == 0
    location.delete_manifest(first.id, "a")
    assert BackupWriter(location, "a", 10 * RETENTION_MS, -1).write(made, tmp_path, Event())[1].files == 1


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_a_backup_that_cannot_be_built_on_is_told(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    location, now_ms = BackupLocation(str(tmp_path / "location"), "app", create=True), int(time.time() * 1000)
    linked = tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    (linked / "000001.sst").write_bytes(b"row")
    writer = _writer(location)
    first, _ = writer.write(backup(now_ms, "a", [0], {"0_0/s/000001.sst": ""}), tmp_path, Event())
    if harm == "deleted":
        location.delete_manifest(first.id, "a")
    else:
        (tmp_path / "location" / "app" / "backups" / first.id / "a.json").write_text("{")
    with caplog.at_level(logging.INFO):
        writer.write(backup(now_ms + 1, "a", [0], {"0_0/s/000001.sst": ""}), tmp_path, Event())
    (told,) = caplog.records
    assert told.levelno == (logging.INFO if harm == "deleted" else logging.WARNING)
    assert first.id in told.getMessage()


def test_of_a_file_that_has_grown_only_what_was_appended_is_written(tmp_path: Path) -> None:
    location, now_ms = BackupLocation(str(tmp_path / "location"), "app", create=True), int(time.time() * 1000)
    log = tmp_path / "0_0" / "s" / "000001.log"
    log.parent.mkdir(parents=True)
    writer, written = BackupWriter(location, "a", 3_600_000, -1), []
    content = random.Random(7).randbytes(3 * PIECE_BYTES)
    for number, size in enumerate((2 * PIECE_BYTES + 10, 2 * PIECE_BYTES + 500, 3 * PIECE_BYTES)):
        log.write_bytes(content[:size])
        made = backup(now_ms + number, "a", [0], {"0_0/s/000001.log": ""})
        made = replace(made, copy=replace(made.copy, files={"0_0/s/000001.log": size}))
        whole, done = writer.write(made, tmp_path, Event())
        written.append(done.bytes)
        pieces = zip(whole.digests["0_0/s/000001.log"], piece_sizes(log.name, size), strict=True)
        assert b"".join(b"".join(location.checked_piece(*each, log.name)) for each in pieces) == content[:size]
    assert written == [2 * PIECE_BYTES + 10, 500, PIECE_BYTES]


@pytest.mark.parametrize("harm", ["gone", "truncated", "flipped"])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_piece_that_the_location_lost_is_written_again(
    tmp_path: Path, harm: str, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, linked = BackupLocation(str(tmp_path / "location"), "app", create=True), tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    (linked / "000001.sst").write_bytes(b"row")
    made, writer = backup(int(time.time() * 1000), "a", [0], {"0_0/s/000001.sst": ""}), _writer(location)
    whole, _ = writer.write(made, tmp_path, Event())
    assert writer.write(made, tmp_path, Event())[1].files == 0
    (digest,) = whole.named
    piece = tmp_path / "location" / "app" / "files" / digest
    piece.unlink()
    if harm != "gone":
        piece.write_bytes(b"ro" if harm == "truncated" else b"rov")
    if is_restarted:
        writer = _writer(location)
    else:
        assert writer.write(made, tmp_path, Event())[1].files == 0, "it lists once an hour"
        hour_later_s = time.monotonic() + 60 * 60
        monkeypatch.setattr(time, "monotonic", lambda: hour_later_s)
    stopped = Event()
    stopped.set()
    with pytest.raises(RetryLaterError):
        writer.write(made, tmp_path, stopped)
    assert writer.write(made, tmp_path, Event())[1].files == (harm != "flipped")
    assert writer.write(made, tmp_path, Event())[1].files == 0
    assert writer.write(made, tmp_path, Event(), full=True)[1].files == 1
    assert b"".join(location.checked_piece(digest, 3, "000001.sst")) == b"row"


def _writer(location: BackupLocation) -> BackupWriter:
    return BackupWriter(location, "a", 3_600_000, -1)


def test_a_backup_that_is_built_on_stays_until_the_next_one_names_its_files(tmp_path: Path) -> None:
    location, now_ms = BackupLocation(str(tmp_path / "location"), "app", create=True), int(time.time() * 1000)
    linked = tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    (linked / "000001.sst").write_bytes(b"row")
    writer, leased = BackupWriter(location, "a", 3_600_000, -1), list[set[str]]()
    first, _ = writer.write(backup(now_ms, "a", [0], {"0_0/s/000001.sst": ""}), tmp_path, Event())
    (linked / "000002.sst").write_bytes(b"new")
    put = location.put_file

    def noted(*given: Any) -> None:
        leased.append(location.leased(time.time()))
        put(*given)

    location.put_file = noted  # type: ignore[method-assign, assignment]
    files = {"0_0/s/000001.sst": "", "0_0/s/000002.sst": ""}
    writer.write(backup(now_ms + 1, "a", [0], files), tmp_path, Event())
    assert leased == [{first.id}]
    assert location.leased(time.time()) == set()


@pytest.mark.parametrize("place", ["/etc/s", "../s", "0_0/..", "0_0/a/b", "0_0", "0_0/s/../../x", ""])
def test_a_manifest_whose_paths_lead_elsewhere_is_damaged(place: str) -> None:
    made = backup(1, "a", [0], {f"{place}/CURRENT": "0" * 64})
    part = replace(made.copy.parts[0], directory=place)
    with pytest.raises(DamagedDataError, match="none of a store's files"):
        Backup.decode(replace(made, copy=replace(made.copy, parts=(part,))).encode(), "here")


def test_a_manifest_of_a_newer_version_hides_no_older_backup(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path), "app")
    location.write(backup(1, "a", [0]))
    told = json.loads(backup(2, "a", [0]).encode()) | {"format": 99}
    (tmp_path / "app" / "backups" / "000000002").mkdir()
    (tmp_path / "app" / "backups" / "000000002" / "a.json").write_text(json.dumps(told))
    assert [each.id for each in backups(location)] == ["000000001"]
    with pytest.raises(DoesNotExistError, match=r"has no backup latest. The newest are 000000001, 000000002"):
        list(backups(location, "latest"))
    linked = tmp_path / "0_0" / "s"
    linked.mkdir(parents=True)
    (linked / "000001.sst").write_bytes(b"row")
    made = backup(int(time.time() * 1000), "a", [0], {"0_0/s/000001.sst": ""})
    assert BackupWriter(location, "a", 3_600_000, -1).write(made, tmp_path, Event())[1].files == 1


def _keep_nothing(record: InputRecord, s: StoreView) -> None:
    del record, s


@pytest.mark.parametrize(
    ("settings", "hours", "is_refused"),
    [({}, 22, False), ({}, 24, True), ({"delete.retention.ms": 7_200_000}, 2, True)],
)
def test_a_backup_from_before_deletes_were_forgotten_is_refused(
    settings: dict[str, int], hours: int, is_refused: bool
) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    store = app.store(stores.key_value("s", key=serdes.string, value=serdes.json).with_logging(settings))
    app.process(source, stores=[store])(_keep_nothing)
    made = backup(int(time.time() * 1000) - hours * 3_600_000, "a", [0])
    with pytest.raises(DamagedDataError, match="deleted rows would come back") if is_refused else nullcontext():
        refuse_forgotten(made, "0_0", app.topology(), ConfiguredTopics())
