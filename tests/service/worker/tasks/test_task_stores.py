"""The stores of a task: where they go on from, and what `.checkpoint` and `.position` files say and are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier, get_ident

import pytest

from service.worker.faults import Place, counting
from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import OWNER_EPOCH
from stateline.worker.tasks.task_stores import TaskStores
from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    Position,
    StateStore,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    TopologyError,
)
from stateline_store.files.offset_checkpoint import OFFSET_UNKNOWN, read_offset_checkpoint, write_offset_checkpoint
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.task_id import TaskId
from support.apps.own_stores import OwnStore
from support.rocksdb import database_of
from support.run.patience import HANGING_S

CHANGELOG = TopicPartition("app-s-changelog", 0)
SORTS = [(transactional, manages) for transactional in (True, False) for manages in (True, False)]


def definition(kind: str = "key_value", *, persistent: bool = True) -> StoreDefinition:
    make = stores.timestamped_key_value if kind == "timestamped_key_value" else stores.key_value
    return make("s", key=serdes.bytes, value=serdes.bytes, persistent=persistent)


def own(transactional: bool, manages_offsets: bool) -> StoreDefinition:
    factory = partial(OwnStore, transactional=transactional, manages_offsets=manages_offsets)
    return stores.custom("s", factory, key=serdes.string, value=serdes.string)


@contextmanager
def opened(
    directory: Path,
    declared: StoreDefinition,
    *,
    exactly_once: bool = False,
    changelogs: Mapping[str, TopicPartition] | None = None,
    clean: bool = True,
    is_standby: bool = False,
) -> Iterator[TaskStores]:
    made = TaskStores(
        TaskId(0, 0),
        directory,
        {"s": declared},
        {"s": CHANGELOG} if changelogs is None else changelogs,
        exactly_once=exactly_once,
        sync=False,
    )
    made.open(is_standby=is_standby)
    try:
        yield made
    finally:
        made.close(clean=clean)


def of_bytes(store: StateStore) -> KeyValueStore:
    assert isinstance(store, KeyValueStore)
    return store


def of_own(store: StateStore) -> OwnStore:
    assert isinstance(store, OwnStore)
    return store


def write_rows(directory: Path, rows: Mapping[bytes, bytes], offsets: Mapping[TopicPartition, int]) -> None:
    """A store as it was left behind; without `offsets`, by another program that keeps them elsewhere."""
    if not offsets:
        engine = RocksDBEngine(directory / "rocksdb" / "s")
        for key, value in rows.items():
            database_of(engine)[key] = value
        engine.close()
        return
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", directory, CHANGELOG))
    store.put_all(rows.items())
    store.commit(offsets)
    store.close()


def test_a_store_goes_on_from_its_own_offset_whatever_the_checkpoint_says(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    write_offset_checkpoint(tmp_path / ".checkpoint", {CHANGELOG: 99})
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") == 7
        assert read_offset_checkpoint(tmp_path / ".checkpoint") == {CHANGELOG: 7}


def test_an_offset_in_the_checkpoint_is_taken_into_a_store_with_rows_and_none_of_its_own(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {})
    write_offset_checkpoint(tmp_path / ".checkpoint", {CHANGELOG: 41, TopicPartition("other", 3): 5})
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") == 41
        assert of_bytes(made.by_name["s"]).get(b"a") == b"1"
    (tmp_path / ".checkpoint").unlink()
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") == 41


def test_where_a_store_in_memory_stands_is_known_as_long_as_it_is_open_and_written_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path, definition(persistent=False)) as made:
        assert (made.offsets.committed("s"), made.offsets.owner_epoch("s")) == (None, 0)
        made.commit_one("s", {CHANGELOG: 7, OWNER_EPOCH: 3})
        made.commit_one("s", {CHANGELOG: 8})
        assert (made.offsets.committed("s"), made.offsets.owner_epoch("s")) == (8, 3)
        made.rebuild("s")
        assert (made.offsets.committed("s"), made.offsets.owner_epoch("s")) == (None, 0)
        made.commit_one("s", {CHANGELOG: 7})
    assert read_offset_checkpoint(tmp_path / ".checkpoint") == {}
    made.open()
    assert made.offsets.committed("s") is None
    made.close(clean=True)


class _InMemory(OwnStore):
    @property
    def persistent(self) -> bool:
        return False


@pytest.mark.parametrize("manages", [True, False])
def test_a_store_of_ones_own_in_memory_is_always_restored_anew(tmp_path: Path, manages: bool) -> None:
    factory = partial(_InMemory, transactional=False, manages_offsets=manages)
    declared = stores.custom("s", factory, key=serdes.string, value=serdes.string, persistent=False)
    with opened(tmp_path, declared) as made:
        made.commit_one("s", {CHANGELOG: 7})
        assert made.offsets.committed("s") is None


@pytest.mark.parametrize("noted", [{}, {CHANGELOG: OFFSET_UNKNOWN}], ids=["no file", "unknown"])
def test_rows_of_which_nobody_knows_the_offset_are_deleted_and_restored(
    noted: Mapping[TopicPartition, int], tmp_path: Path
) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {})
    write_offset_checkpoint(tmp_path / ".checkpoint", noted)
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") is None
        assert of_bytes(made.by_name["s"]).is_empty()


def test_records_that_were_put_without_a_changelog_are_not_deleted_when_there_is_one(tmp_path: Path) -> None:
    with opened(tmp_path, definition(), changelogs={}) as made:
        of_bytes(made.by_name["s"]).put(b"a", b"the only copy")
        made.commit({})
    with pytest.raises(TopologyError, match="logged=False"), opened(tmp_path, definition()):
        pass
    with opened(tmp_path, definition(), changelogs={}) as made:
        assert of_bytes(made.by_name["s"]).get(b"a") == b"the only copy"


def test_records_with_timestamps_and_no_changelog_are_not_passed_over_when_declared_without(tmp_path: Path) -> None:
    with opened(tmp_path, definition("timestamped_key_value"), changelogs={}) as made:
        of_bytes(made.by_name["s"]).put(b"a", b"the only copy")
        made.commit({})
    with (
        pytest.raises(TopologyError, match="declare it with timestamps"),
        opened(tmp_path, definition(), changelogs={}),
    ):
        pass
    assert not (tmp_path / "rocksdb" / "s").exists()


class Checked(TimestampedKeyValueStore):
    """A store of one's own that is one of Stateline's, but for what it says of itself."""


@pytest.mark.parametrize("changelogs", [{"s": CHANGELOG}, {}], ids=["logged", "unlogged"])
def test_a_store_of_ones_own_that_is_a_timestamped_one_opens_again(
    changelogs: Mapping[str, TopicPartition], tmp_path: Path
) -> None:
    declared = stores.custom("s", Checked, key=serdes.bytes, value=serdes.bytes, logged=bool(changelogs))
    for expected in (None, b"1"):
        with opened(tmp_path, declared, changelogs=changelogs) as made:
            store = made.by_name["s"]
            assert isinstance(store, Checked)
            assert store.get(b"a") == expected
            store.put_with_timestamp(b"a", b"1", 5)
            made.commit({"s": {CHANGELOG: 7}} if changelogs else {})


def test_a_store_of_ones_own_that_becomes_a_timestamped_one_is_upgraded(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    declared = stores.custom("s", Checked, key=serdes.bytes, value=serdes.bytes)
    with opened(tmp_path, declared) as made:
        assert (made.offsets.committed("s"), made.furthest_offset("s")) == (None, 7)
        made.commit({"s": {CHANGELOG: 7}})
        made.formats.drop_plain(made.offsets.committed)
    assert [path.name for path in (tmp_path / "rocksdb").iterdir()] == ["s-v2"]


def test_a_damaged_position_file_costs_nothing_but_itself(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    (tmp_path / "s.position").write_text("neither\n")
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") == 7
        assert of_bytes(made.by_name["s"]).get(b"a") == b"1"
    assert (tmp_path / "s.position").exists()


def test_plain_files_that_had_more_of_the_changelog_stay(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    with opened(tmp_path, definition("timestamped_key_value")) as made:
        assert (made.offsets.committed("s"), made.furthest_offset("s")) == (None, 7)
        made.commit({"s": {CHANGELOG: 6}})
        made.formats.drop_plain(made.offsets.committed)
    assert (tmp_path / "rocksdb" / "s").exists()


def test_an_offset_in_the_checkpoint_says_nothing_of_a_store_without_rows(tmp_path: Path) -> None:
    write_offset_checkpoint(tmp_path / ".checkpoint", {CHANGELOG: 41})
    with opened(tmp_path, definition()) as made:
        assert made.offsets.committed("s") is None
    assert read_offset_checkpoint(tmp_path / ".checkpoint") == {}


def test_a_position_file_is_taken_into_a_store_with_rows_and_goes(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    write_offset_checkpoint(tmp_path / "s.position", {TopicPartition("in", 0): 12})
    with opened(tmp_path, definition()) as made:
        assert of_bytes(made.by_name["s"]).position(IsolationLevel.READ_COMMITTED) == Position({"in": {0: 12}})
    assert not (tmp_path / "s.position").exists()
    with opened(tmp_path, definition()) as made:
        assert of_bytes(made.by_name["s"]).position(IsolationLevel.READ_COMMITTED) == Position({"in": {0: 12}})


def test_a_position_file_says_nothing_of_a_store_with_a_position_or_without_rows(tmp_path: Path) -> None:
    write_offset_checkpoint(tmp_path / "s.position", {TopicPartition("in", 0): 12})
    with opened(tmp_path, definition()) as made:
        store = of_bytes(made.by_name["s"])
        assert store.position(IsolationLevel.READ_COMMITTED) == Position()
        store.put(b"a", b"1")
        made.commit({"s": {CHANGELOG: 0}})
        store.advance(Position({"in": {0: 3}}))
        made.commit({})
    write_offset_checkpoint(tmp_path / "s.position", {TopicPartition("in", 0): 12})
    with opened(tmp_path, definition()) as made:
        assert of_bytes(made.by_name["s"]).position(IsolationLevel.READ_COMMITTED) == Position({"in": {0: 3}})
    assert not (tmp_path / "s.position").exists()


def test_the_checkpoint_is_written_at_opening_and_closing_and_not_at_commits(tmp_path: Path) -> None:
    with opened(tmp_path, definition()) as made:
        of_bytes(made.by_name["s"]).put(b"a", b"1")
        made.commit({"s": {CHANGELOG: 3}})
        assert read_offset_checkpoint(tmp_path / ".checkpoint") == {}
    assert read_offset_checkpoint(tmp_path / ".checkpoint") == {CHANGELOG: 3}


@pytest.mark.parametrize(("transactional", "manages"), SORTS)
def test_a_store_of_ones_own_is_committed_and_goes_on_from_what_it_declares(
    transactional: bool, manages: bool, tmp_path: Path
) -> None:
    with opened(tmp_path, own(transactional, manages)) as made:
        of_own(made.by_name["s"]).put("a", "1")
        made.commit({"s": {CHANGELOG: 3}})
        assert read_offset_checkpoint(tmp_path / ".checkpoint") == ({} if manages else {CHANGELOG: 3})
    assert read_offset_checkpoint(tmp_path / ".checkpoint") == {CHANGELOG: 3}
    with opened(tmp_path, own(transactional, manages)) as made:
        assert made.offsets.committed("s") == 3
        assert of_own(made.by_name["s"]).rows() == {"a": "1"}


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(("transactional", "manages"), SORTS)
def test_after_a_crash_under_exactly_once_only_a_transactional_store_is_believed(
    transactional: bool, manages: bool, exactly_once: bool, tmp_path: Path
) -> None:
    crashed = TaskStores(
        TaskId(0, 0),
        tmp_path,
        {"s": own(transactional, manages)},
        {"s": CHANGELOG},
        exactly_once=exactly_once,
        sync=False,
    )
    crashed.open()
    of_own(crashed.by_name["s"]).put("a", "1")
    crashed.commit({"s": {CHANGELOG: 3}})
    of_own(crashed.by_name["s"]).put("b", "never committed")
    with opened(tmp_path, own(transactional, manages), exactly_once=exactly_once) as made:
        rows = of_own(made.by_name["s"]).rows()
        if exactly_once and not transactional:
            assert (made.offsets.committed("s"), rows) == (None, {})
        else:
            assert made.offsets.committed("s") == 3
            assert rows == ({"a": "1"} if transactional else {"a": "1", "b": "never committed"})


@pytest.mark.parametrize("manages", [True, False])
def test_a_store_that_was_closed_amid_its_work_is_not_believed_under_exactly_once(
    manages: bool, tmp_path: Path
) -> None:
    for clean in (False, True):
        with opened(tmp_path, own(False, manages), exactly_once=True, clean=clean) as made:
            of_own(made.by_name["s"]).put("a", "1")
            made.commit({"s": {CHANGELOG: 3}})
        with opened(tmp_path, own(False, manages), exactly_once=True) as made:
            assert made.offsets.committed("s") == (3 if clean else None)


def test_plain_files_without_a_changelog_are_refused_and_kept(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {})
    declared = definition("timestamped_key_value")
    with pytest.raises(TopologyError, match="declare it without timestamps"), opened(tmp_path, declared, changelogs={}):
        pass
    with opened(tmp_path, definition(), changelogs={}) as made:
        assert of_bytes(made.by_name["s"]).get(b"a") == b"1"


def test_plain_files_go_when_the_timestamped_store_is_restored(tmp_path: Path) -> None:
    write_rows(tmp_path, {b"a": b"1"}, {CHANGELOG: 7})
    with opened(tmp_path, definition("timestamped_key_value")) as made:
        store = made.by_name["s"]
        assert isinstance(store, TimestampedKeyValueStore)
        assert made.offsets.committed("s") is None
        store.put_with_timestamp(b"a", b"1", 5)
        made.commit({"s": {CHANGELOG: 7}})
        assert (tmp_path / "rocksdb" / "s").exists()
        made.formats.drop_plain(made.offsets.committed)
    assert sorted(path.name for path in (tmp_path / "rocksdb").iterdir()) == ["s-v2"]
    assert not (tmp_path / "s.notice").exists()


def test_tasks_close_their_stores_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close, together, threads = RocksDBEngine.close, Barrier(4), set[int]()

    def close_together(engine: RocksDBEngine) -> None:
        threads.add(get_ident())
        together.wait(HANGING_S)  # for as many as are open
        close(engine)

    place = Place(tmp_path, partitions=4)
    place.send_each_partition(4, 1)
    app = counting()
    config = place.config(app)
    worker = place.worker(app, config)
    monkeypatch.setattr(RocksDBEngine, "close", close_together)
    worker.reach(lambda: all(worker.read_up_to(TopicPartition("in", n)) == 1 for n in range(4)))
    monkeypatch.undo()
    assert len(threads) == 4
    assert place.stores(app, config).rows("counts", 4) == {b"p%d" % n: b"1" for n in range(4)}
    place.close()


def test_a_store_of_the_applications_own_closes_on_the_thread_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, close = set[int](), OwnStore.close

    def noted(store: OwnStore) -> None:
        threads.add(get_ident())
        close(store)

    monkeypatch.setattr(OwnStore, "close", noted)
    place, app = Place(tmp_path, partitions=4), App("app")
    kept = app.store(own(transactional=True, manages_offsets=True))
    app.process(app.topic("in", key=serdes.string, value=serdes.string), stores=[kept], name="keep")(
        lambda record, kept: kept.put(record.key, record.value)
    )
    worker = place.worker(app, place.config(app))
    worker.reach(lambda: len(worker.tasks.running) == 4)
    assert threads == {get_ident()}
    place.close()
