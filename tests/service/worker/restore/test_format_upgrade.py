"""Stores of an application that is declared with timestamps now, over plain files: offline, in place, rolled over."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.worker.faults import IN, Entry, Place
from stateline.config.settings import Config
from stateline.deployment.stores.topology_file import Placement
from stateline.dsl.app import App
from stateline.log import Record
from stateline.model.stored_value import taken_apart
from stateline.processing.changelog import types_headers
from stateline.query.values import Outcome, PartitionAnswer, Terms
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.worker.restore import changelog_follower, store_restore
from stateline.worker.restore.format_upgrades import FormatUpgrades
from stateline.worker.tasks import commit_marks
from stateline.worker.tasks.task import TaskState
from stateline_store import (
    IsolationLevel,
    KeyQuery,
    LockedError,
    RangeQuery,
    RetryLaterError,
    StateDirectory,
    StoreContext,
    StoreTypes,
    TopicPartition,
    TopologyError,
)
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import split_headers, without_headers
from stateline_store.rows.timestamped_rows import split
from stateline_store.scan import EVERY_KEY
from support.apps.steps_app import KINDS, declared, keeping
from support.processes.owned import Owned
from support.processes.running_worker import eventually, read_all, running

IN_PLACE = {"upgrade__from": "v1", "upgrade__mode": "in_place"}
ROLL_OVER = {"upgrade__from": "v1", "upgrade__mode": "roll_over"}
UNKNOWN = -1
CHANGELOG = TopicPartition("app-s-changelog", 0)
Stamped = dict[bytes, tuple[bytes, int]]


def app(kind: str, *, timestamped: bool, **options: Any) -> App:
    return keeping(declared(kind, timestamped=timestamped, **options))


def marks(first: int, last: int) -> list[Entry]:
    """Numbered values of five keys, one a second; every seventh removes."""
    return [
        (b"k%d" % (n % 5), b"none" if n % 7 == 6 else b"%d" % n, 3_600_000_000 + 1000 * n) for n in range(first, last)
    ]


def files(config: Config, *, timestamped: bool, partition: int = 0) -> Path:
    return StateDirectory(config.state_dir, "app").store(f"0_{partition}", "s", timestamped=timestamped)


def on_disk(config: Config, *, timestamped: bool, partition: int = 0) -> dict[bytes, bytes]:
    """What these files hold, also while a worker has them."""
    with (
        OfflineStore(files(config, timestamped=timestamped, partition=partition)) as store,
        store.scan(EVERY_KEY) as scan,
    ):
        return dict(scan)


def stamped(config: Config, kind: str, partition: int = 0) -> Stamped:
    """The timestamped files' rows, by the changelog's keys."""
    width = 0 if kind == "key_value" else 8
    rows = on_disk(config, timestamped=True, partition=partition)
    return {key[width:]: _pair(stored) for key, stored in rows.items()}


def stored_of(answer: PartitionAnswer) -> dict[bytes, bytes]:
    """Key → what is stored."""
    entries: Any = answer.rows.entries  # of a key-value store: both are bytes
    return dict(entries)


def _pair(stored: bytes) -> tuple[bytes, int]:
    value, timestamp = split(stored)
    return value, timestamp


def changelog(place: Place, partitions: int = 1) -> Stamped:
    """What the changelog makes of the store: the newest record of each key and its timestamp."""
    newest: dict[bytes, Record] = {}
    for record in read_all(place.log, "app-s-changelog", partitions):
        assert record.key is not None
        newest[record.key] = record
    return {key: (r.value, r.timestamp_ms) for key, r in newest.items() if r.value is not None}


def sent(place: Place, *runs: list[Entry]) -> dict[tuple[bytes, bytes], int]:
    """The timestamps that records came with, by key and value."""
    return {(key or b"", value): at for run in runs for key, value, at in run}


def ran_plain(place: Place, kind: str, count: int = 30) -> Config:
    """An application without timestamps has worked off so many records, and was stopped."""
    plain = app(kind, timestamped=False)
    config = place.config(plain)
    place.send(marks(0, count))
    place.work_off(plain, config, count - 1, "s")
    return config


def is_ready(caplog: pytest.LogCaptureFixture, times: int = 1) -> bool:
    return sum("is ready with timestamps" in record.message for record in caplog.records) >= times


@contextmanager
def partitions_of(app: App, config: Config, scratch: Path) -> Iterator[Partitions]:
    directory = StateDirectory(config.state_dir, app.application_id)
    made = Partitions(directory, scratch, Owned(), upgrading=config.upgrade_from is not None)
    try:
        yield made
    finally:
        made.close()


def ask(made: Partitions, app: App, query: KeyQuery | RangeQuery) -> Outcome:
    store = ServedStore(app.topology().stores["s"], Placement(0, 1, None))
    return made.ask(store, Terms("s", IsolationLevel.READ_COMMITTED), 0, query)


@pytest.mark.parametrize("kind", KINDS)
def test_offline_the_timestamped_files_are_made_from_the_changelog_and_then_the_plain_ones_go(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    config = ran_plain(place, kind)
    was = on_disk(config, timestamped=False)
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 2)
    worker, found = place.worker(app(kind, timestamped=True), config), set[tuple[TaskState, bool]]()

    def upgraded() -> bool:
        found.update((task.state, files(config, timestamped=False).exists()) for task in worker.tasks.all.values())
        return worker.read_up_to(IN) == 30

    worker.reach(upgraded)
    assert found == {(TaskState.RESTORING, True), (TaskState.RUNNING, False)}
    assert stamped(config, kind) == changelog(place)
    assert {key: stored[8:] for key, stored in on_disk(config, timestamped=True).items()} == was
    assert not (place.task() / "s.notice").exists()


def test_offline_what_was_committed_can_be_asked_all_along(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = ran_plain(place, "key_value")
    was = on_disk(config, timestamped=False)
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 1)
    monkeypatch.setattr(store_restore, "_BATCH_BYTES", 1)
    declared_now = app("key_value", timestamped=True)
    worker, served = place.worker(declared_now, config), set[str]()
    with partitions_of(declared_now, config, tmp_path / "scratch") as made:

        def upgraded() -> bool:
            outcome = ask(made, declared_now, RangeQuery())
            assert isinstance(outcome, PartitionAnswer), outcome
            assert {key: stored[8:] for key, stored in outcome.rows.entries} == was
            assert outcome.position.get("in", 0) == 29
            served.add(outcome.copy.served_by)
            return worker.read_up_to(IN) == 30

        worker.reach(upgraded)
    assert served == {"restoring", "active"}


@pytest.mark.parametrize("kind", KINDS)
def test_plain_stores_get_timestamps_and_headers_in_one_upgrade(
    place: Place, caplog: pytest.LogCaptureFixture, tmp_path: Path, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, kind)
    with_headers = app(kind, timestamped=True, headers=True)
    config, new = place.config(with_headers, **IN_PLACE), marks(30, 40)
    producer = place.log.producer()
    for key, value, at_ms in new:
        producer.produce("in", key, value, timestamp_ms=at_ms, headers=[("of", value)])
    producer.flush()
    producer.close()
    worker, views = place.worker(with_headers, config), list[dict[bytes, bytes]]()

    def seen() -> bool:
        (store,) = (store for task in worker.tasks.all.values() for _, store in task.stores.transactional)
        with store.reader(IsolationLevel.READ_UNCOMMITTED).scan(EVERY_KEY) as rows:
            views.append(dict(rows))
        return True

    worker.reach(lambda: worker.read_up_to(IN) == 40 and seen() and is_ready(caplog))
    without = {key: without_headers(split(row).value) for key, row in views[-1].items()}
    assert without == on_disk(config, timestamped=False)
    assert sorted(without.values()) == sorted(value for value, _ in changelog(place).values())
    if kind == "key_value":  # the plain files serve
        with partitions_of(with_headers, config, tmp_path / "scratch") as made:
            outcome = ask(made, with_headers, RangeQuery())
            assert isinstance(outcome, PartitionAnswer), outcome
            definition, rows = with_headers.topology().stores["s"], stored_of(outcome)
            assert {taken_apart(definition, row).headers for row in rows.values()} == {()}
    now = changelog(place)
    place.work_off(with_headers, place.config(with_headers), 39, "s")
    found = stamped(config, kind)
    assert {key: (without_headers(value), at) for key, (value, at) in found.items()} == now
    later = {value for _, value, _ in new}
    assert {value: split_headers(joined)[1] for joined, _ in found.values() for value in [without_headers(joined)]} == {
        value: (("of", value),) if value in later else () for value, _ in now.values()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_the_plain_files_serve_while_timestamped_ones_are_built_for_the_next_start(
    place: Place, caplog: pytest.LogCaptureFixture, delivered: list[Record], kind: str
) -> None:
    caplog.set_level(logging.INFO)
    plain, timestamped, old = ran_plain(place, kind), app(kind, timestamped=True), changelog(place)
    config = place.config(timestamped, **IN_PLACE)
    worker, views = place.worker(timestamped, config), list[dict[bytes, bytes]]()

    def seen() -> bool:
        (store,) = (store for task in worker.tasks.all.values() for _, store in task.stores.transactional)
        with store.reader(IsolationLevel.READ_COMMITTED).scan(EVERY_KEY) as rows:
            views.append(dict(rows))
        return True

    worker.reach(lambda: worker.read_up_to(IN) == 30 and seen() and is_ready(caplog))
    assert {split(stored).timestamp for stored in views[-1].values()} == {UNKNOWN}
    assert {key: stored[8:] for key, stored in views[-1].items()} == on_disk(plain, timestamped=False)
    assert stamped(config, kind) == old

    new = marks(30, 60)
    place.send(new)
    worker = place.worker(timestamped, config)
    worker.reach(lambda: worker.read_up_to(IN) == 60 and is_ready(caplog, 2))
    now, sent_at = changelog(place), sent(place, new)
    assert {key: value for key, (value, _) in now.items()} == {
        key[0 if kind == "key_value" else 8 :]: value for key, value in on_disk(config, timestamped=False).items()
    }
    fresh = {value: at for key, (value, at) in now.items() if old.get(key) != (value, at)}
    assert fresh == {value: at for (_, value), at in sent_at.items() if value in fresh}, "as the records were stamped"
    assert fresh

    delivered.clear()
    place.work_off(timestamped, place.config(timestamped), 59, "s")
    assert len(delivered) <= 30, "only what the changelog got since the files were ready"
    assert stamped(config, kind) == now
    assert not files(config, timestamped=False).exists()


def test_in_place_what_is_built_follows_what_is_processed(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("stateline.worker.restore.format_upgrades._FOLLOW_INTERVAL_S", 0.01)
    ran_plain(place, "key_value")
    timestamped, ends = app("key_value", timestamped=True), [30]
    config = place.config(timestamped, **IN_PLACE)
    worker = place.worker(timestamped, config)

    def followed() -> bool:
        at_the_end = place.admin.committed("app", [IN]).get(IN) == ends[-1] and is_ready(caplog)
        if not at_the_end or stamped(config, "key_value") != changelog(place):
            return False
        ends.append(ends[-1] + 30)
        place.send(marks(ends[-2], ends[-1]))
        return len(ends) == 5

    worker.reach(followed)
    assert not is_ready(caplog, 2), "it is said once"
    assert len([record for record in caplog.records if "Restor" in record.message]) == 0, "following is not news"


def test_in_place_processing_does_not_wait_for_what_is_built(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)
    config = place.config(timestamped, **IN_PLACE)
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 1)
    worker, next_, amid_the_build = place.worker(timestamped, config), itertools.count(30), set[int]()

    def built() -> bool:
        if worker._manager.upgrades._restorer.busy:
            amid_the_build.add(worker.read_up_to(IN))
        n = next(next_)
        place.send(marks(n, n + 1))
        return is_ready(caplog)

    worker.reach(built)
    assert len(amid_the_build) >= 3, "records were processed between slices of the build"


@pytest.mark.parametrize("kind", KINDS)
def test_going_back_from_in_place_to_the_old_declaration_finds_current_files(
    place: Place, caplog: pytest.LogCaptureFixture, delivered: list[Record], kind: str
) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, kind)
    timestamped, plain = app(kind, timestamped=True), app(kind, timestamped=False)
    config = place.config(timestamped, **IN_PLACE)
    place.send(marks(30, 40))
    worker = place.worker(timestamped, config)
    worker.reach(lambda: worker.read_up_to(IN) == 40 and is_ready(caplog))
    delivered.clear()
    place.send(marks(40, 50))
    place.work_off(plain, place.config(plain), 49, "s")
    assert delivered == []
    now = changelog(place)
    width = 0 if kind == "key_value" else 8
    rows = {key[width:]: value for key, value in on_disk(config, timestamped=False).items()}
    assert rows == {key: value for key, (value, _) in now.items()}

    place.work_off(timestamped, place.config(timestamped), 49, "s")
    assert stamped(config, kind) == now, "the upgrade, taken up again, goes on from what was built"


def test_rolled_over_the_plain_files_serve_and_another_instance_builds_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = Place(tmp_path)
    ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)
    old, new = place.config(timestamped, **ROLL_OVER), place.config(timestamped, "another machine")
    with running(timestamped, old, place.log, "old"):
        place.send(marks(30, 40))
        with partitions_of(timestamped, old, tmp_path / "scratch") as made:
            eventually(lambda: _position(ask(made, timestamped, RangeQuery())) == 39, "the old instance goes on")
            outcome = ask(made, timestamped, KeyQuery(b"k1"))
            assert isinstance(outcome, PartitionAnswer)
            assert [split(stored) for stored in stored_of(outcome).values()] == [(b"36", UNKNOWN)]
            assert outcome.copy.served_by == "active"
        assert not files(old, timestamped=True).exists()
    assert not is_ready(caplog)
    with running(timestamped, new, place.log, "new"):
        found = place.stores(timestamped, new)
        eventually(lambda: found.offset("s", "in", 0) == 39, "the new instance has it")
    assert stamped(new, "key_value") == changelog(place)
    assert files(old, timestamped=False).exists()
    place.close()


def _position(outcome: Outcome) -> int | None:
    assert isinstance(outcome, PartitionAnswer), outcome
    return outcome.position.get("in", 0)


@pytest.mark.parametrize("settings", [{}, IN_PLACE, ROLL_OVER], ids=["offline", "in_place", "roll_over"])
def test_a_store_without_a_changelog_is_not_upgraded_and_nothing_is_deleted(
    place: Place, settings: dict[str, Any]
) -> None:
    plain, timestamped = (app("key_value", timestamped=t, logged=False) for t in (False, True))
    place.send(marks(0, 30))
    place.work_off(plain, place.config(plain), 29, "s")
    was = on_disk(place.config(plain), timestamped=False)
    with pytest.raises(TopologyError, match=r"Store 's' of task 0_0 .* no changelog .* declare it without timestamps"):
        place.worker(timestamped, place.config(timestamped, **settings)).reach(lambda: False)
    assert on_disk(place.config(plain), timestamped=False) == was
    assert not files(place.config(plain), timestamped=True).exists()
    place.send(marks(30, 31))
    place.work_off(plain, place.config(plain), 30, "s")


@pytest.mark.parametrize("settings", [{}, IN_PLACE, ROLL_OVER], ids=["offline", "in_place", "roll_over"])
@pytest.mark.parametrize("kind", ["window", "session"])
def test_files_of_another_kind_of_store_are_not_taken_for_the_old_format(
    place: Place, kind: str, settings: dict[str, Any]
) -> None:
    config = ran_plain(place, kind)
    was, timestamped = on_disk(config, timestamped=False), app("key_value", timestamped=True)
    with pytest.raises(TopologyError, match=f"holds a {kind} store, but the application declares a key_value store"):
        place.worker(timestamped, place.config(timestamped, **settings)).reach(lambda: False)
    assert on_disk(config, timestamped=False) == was


@pytest.mark.parametrize("settings", [{}, IN_PLACE])
def test_from_a_changelog_of_other_types_nothing_is_built(
    place: Place, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit_marks, "types_headers", lambda _: types_headers(StoreTypes("int32", "bytes")))
        config = ran_plain(place, "key_value")
    was, timestamped = on_disk(config, timestamped=False), app("key_value", timestamped=True)
    with pytest.raises(TopologyError, match="app-s-changelog-0 holds keys of int32 and values of bytes"):
        place.worker(timestamped, place.config(timestamped, **settings)).reach(lambda: False)
    assert not files(config, timestamped=True).exists()
    assert on_disk(config, timestamped=False) == was


@pytest.mark.parametrize("to_timestamped", [True, False])
def test_files_under_the_other_formats_name_are_refused(place: Place, to_timestamped: bool) -> None:
    written = app("key_value", timestamped=not to_timestamped)
    config = place.config(written)
    place.send(marks(0, 30))
    place.work_off(written, config, 29, "s")
    was = on_disk(config, timestamped=not to_timestamped)
    files(config, timestamped=not to_timestamped).rename(files(config, timestamped=to_timestamped))
    with pytest.raises(TopologyError, match="give the store another name"):
        place.worker(app("key_value", timestamped=to_timestamped), config).reach(lambda: False)
    if not to_timestamped:
        with pytest.raises(TopologyError, match="give the store another name"):
            place.worker(app("key_value", timestamped=True), config).reach(lambda: False)
    assert on_disk(config, timestamped=to_timestamped) == was


def test_a_store_that_is_kept_in_memory_now_leaves_its_old_files_alone(place: Place) -> None:
    config = ran_plain(place, "key_value")
    in_memory = app("key_value", timestamped=True, persistent=False)
    worker = place.worker(in_memory, config)
    worker.reach(lambda: worker.read_up_to(IN) == 30)
    assert files(config, timestamped=False).exists()


def test_plain_files_that_cannot_be_deleted_stop_nobody_and_go_at_the_next_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)

    def refuse(task: Path, store: str) -> None:
        raise RetryLaterError(f"{task / store} cannot be removed: Permission denied.")

    with monkeypatch.context() as patch:
        patch.setattr("stateline.worker.tasks.store_formats.remove_plain_files", refuse)
        place.send(marks(30, 40))
        place.work_off(timestamped, config, 39, "s")
    assert files(config, timestamped=False).exists()
    place.send(marks(40, 50))
    place.work_off(timestamped, config, 49, "s")
    assert not files(config, timestamped=False).exists()


def test_a_server_goes_from_the_plain_files_to_the_others_within_one_query(place: Place, tmp_path: Path) -> None:
    config = ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)
    with partitions_of(timestamped, config, tmp_path / "scratch") as made:
        first = ask(made, timestamped, RangeQuery())
        worker = place.worker(timestamped, config)
        worker.reach(lambda: worker.read_up_to(IN) == 30)
        second = ask(made, timestamped, RangeQuery())
    assert isinstance(first, PartitionAnswer)
    assert isinstance(second, PartitionAnswer)
    assert {split(stored).timestamp for stored in stored_of(first).values()} == {UNKNOWN}
    assert {key: _pair(stored) for key, stored in stored_of(second).items()} == changelog(place)


def test_plain_files_that_had_more_than_the_changelog_stay_and_are_not_asked_any_more(
    place: Place, tmp_path: Path
) -> None:
    config = ran_plain(place, "key_value")
    timestamped, was = app("key_value", timestamped=True), on_disk(config, timestamped=False)
    place.delete(CHANGELOG.topic, 0, place.admin.watermarks(CHANGELOG)[1] - 1)  # its retention was over
    worker = place.worker(timestamped, config)
    worker.reach(lambda: worker.read_up_to(IN) == 30)
    assert on_disk(config, timestamped=False) == was
    with partitions_of(timestamped, config, tmp_path / "scratch") as made:
        outcome = ask(made, timestamped, RangeQuery())
    assert isinstance(outcome, PartitionAnswer)
    assert list(outcome.rows.entries) == []


def test_what_was_built_and_is_damaged_is_built_anew(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)
    config = place.config(timestamped, **IN_PLACE)
    place.worker(timestamped, config).reach(lambda: is_ready(caplog))
    (files(config, timestamped=True) / "CURRENT").write_text("damaged")
    place.worker(timestamped, config).reach(lambda: is_ready(caplog, 2))
    assert "are deleted and built again" in caplog.text
    assert stamped(config, "key_value") == changelog(place)


def test_what_was_built_is_built_anew_when_the_changelog_has_lost_what_comes_next(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, "key_value")
    timestamped, plain = app("key_value", timestamped=True), app("key_value", timestamped=False)
    config = place.config(timestamped, **IN_PLACE)
    place.worker(timestamped, config).reach(lambda: is_ready(caplog))
    place.send(marks(30, 60))
    place.work_off(plain, place.config(plain), 59, "s")
    place.delete(CHANGELOG.topic, 0, place.admin.watermarks(CHANGELOG)[1] - 3)
    place.worker(timestamped, config).reach(lambda: is_ready(caplog, 2))
    assert "they are built again" in caplog.text
    kept = stamped(config, "key_value")
    assert kept == changelog(place)
    assert len(kept) <= 2


def test_when_one_store_cannot_be_built_all_of_them_are_let_go(place: Place) -> None:
    plain = keeping(declared("key_value", "a", timestamped=False), declared("key_value", "b", timestamped=False))
    place.send(marks(0, 30))
    place.work_off(plain, place.config(plain), 29, "b")
    timestamped = keeping(declared("key_value", "a", timestamped=True), declared("key_value", "b", timestamped=True))
    config = place.config(timestamped, **IN_PLACE)
    held = declared("key_value", "b", timestamped=True).build()
    held.init(StoreContext("0_0", place.task()))
    with pytest.raises(LockedError) as refusal:  # kept: what its traceback holds is not let go by itself
        place.worker(timestamped, config).reach(lambda: False)
    held.close()
    assert "b-v2" in str(refusal.value)
    RocksDBEngine(place.task() / "rocksdb" / "a-v2", layout=_timestamped_key_value()).close()


def _timestamped_key_value() -> Any:
    return declared("key_value", timestamped=True).build().layout  # type: ignore[attr-defined]  # StateStore has none


@pytest.mark.parametrize("build", [0, 1, 3])
def test_a_worker_that_starts_over_amid_a_build_goes_on_with_it(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, build: int
) -> None:
    caplog.set_level(logging.INFO)
    ran_plain(place, "key_value")
    timestamped = app("key_value", timestamped=True)
    config = place.config(timestamped, **IN_PLACE)
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 4)
    advance, turns = FormatUpgrades.advance, itertools.count()

    def fail_once(upgrades: FormatUpgrades) -> None:
        if upgrades._tasks and next(turns) == build:
            raise RetryLaterError("the log is busy")
        advance(upgrades)

    monkeypatch.setattr(FormatUpgrades, "advance", fail_once)
    place.worker(timestamped, config).reach(lambda: is_ready(caplog))
    assert stamped(config, "key_value") == changelog(place)
