"""A store that is declared with other types, or other windows, than it was written with: noticed, and left as it is."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.faults import CHANGELOG as CHANGELOG_TOPIC
from service.worker.faults import GUARANTEES, IN, Place, entries
from service.worker.tasks.test_task_stores import CHANGELOG, opened
from stateline import serdes, stores
from stateline.deployment.stores.topology_file import Placement
from stateline.dsl.app import App
from stateline.log import Record
from stateline.model.store_definition import StoreDefinition
from stateline.model.windows import SessionWindows, TumblingWindows
from stateline.processing.changelog import position_headers, types_headers, types_of_changelog
from stateline.query.values import Failure, PartitionAnswer, Terms
from stateline.serde.plain import JsonSerde, Serde
from stateline.serde.windowed import WindowedSerde
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.worker.restore import changelog_follower, store_restore
from stateline.worker.restore.store_restore import StoreRestore
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyQuery,
    NewerFormatError,
    NotReadyError,
    Position,
    StateDirectory,
    StoreTypes,
    TopologyError,
    TransactionalStore,
)
from support.processes.owned import Owned
from support.processes.running_worker import create

MINUTE = timedelta(minutes=1)
KEYS: dict[str, Any] = {"key": serdes.string}


def keyed(value: Serde = serdes.int64, key: Serde = serdes.string, **more: Any) -> StoreDefinition:
    return stores.key_value("s", key=key, value=value, **more)


def windows(size: timedelta = MINUTE, retention: timedelta = 2 * MINUTE) -> StoreDefinition:
    return stores.window("s", key=serdes.string, value=serdes.int64, size=size, retention=retention)


def table(value: Serde) -> StoreDefinition:
    return App("app").table("in", key=serdes.string, value=value, store="s")


def counted(of: TumblingWindows | SessionWindows) -> StoreDefinition:
    return App("app").stream("in", key=serdes.string).group_by_key().windowed_by(of).count("s").store


class Cents:
    """A serde of an application's own: all of it is JSON's but what is said of it."""

    def __init__(self, name: str = "cents") -> None:
        self.name = name

    def __getattr__(self, method: str) -> Any:
        return getattr(serdes.json, method)


class Pence(Cents):
    """Another one."""


def written(directory: Path, definition: StoreDefinition) -> None:
    """Leave a store of this declaration, with something in it."""
    with opened(directory, definition) as made:
        store = made.by_name["s"]
        assert isinstance(store, TransactionalStore)
        store.put_rows({b"\0" * 30: b"\0" * 8})
        made.commit({"s": {CHANGELOG: 7}})


CHANGED = {
    "value": (keyed(), keyed(serdes.json), "values of int64, and is declared with values of json"),
    "text": (keyed(serdes.string), keyed(serdes.json), "values of string, and is declared with values of json"),
    "key": (keyed(), keyed(key=serdes.int32), "keys of string, and is declared with keys of int32"),
    "both": (keyed(), keyed(serdes.json, serdes.bytes), "keys of string and values of int64, and"),
    "size": (windows(), windows(2 * MINUTE), "windows of 60000 ms, and is declared with windows of 120000 ms"),
    "table": (table(serdes.json), table(serdes.float64), "values of json, and is declared with values of float64"),
    "tumbling": (counted(TumblingWindows(MINUTE)), counted(TumblingWindows(2 * MINUTE)), "windows of 60000 ms, and"),
    "gap": (counted(SessionWindows(MINUTE)), counted(SessionWindows(2 * MINUTE)), "a session gap of 60000 ms, and"),
    "own": (keyed(Cents()), keyed(Pence()), r"values of Cents \(cents\), and is .* of Pence \(cents\)"),
    "name": (keyed(Cents("cents-2")), keyed(Cents("cents-4")), r"Cents \(cents-2\), and is .*Cents \(cents-4\)"),
    "inner": (
        keyed(key=WindowedSerde(Cents(), "window")),
        keyed(key=WindowedSerde(Pence(), "window")),
        r"keys of windowed-.*Cents \(cents\), and",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_other_types_or_sizes_are_refused_and_the_old_ones_go_on(tmp_path: Path, what: str) -> None:
    old, new, said = CHANGED[what]
    written(tmp_path, old)
    with (
        pytest.raises(TopologyError, match=f"{said}.*: declare it as it was, or give"),
        opened(tmp_path, new),
    ):
        pass
    with opened(tmp_path, old) as made:
        assert made.offsets.committed("s") == 7


MOVED = type("Cents", (Cents,), {"__module__": "shop.money"})

SAME = {
    "retention": (windows(), windows(retention=60 * MINUTE)),
    "grace": (counted(SessionWindows(MINUTE)), counted(SessionWindows(MINUTE, grace=60 * MINUTE))),
    "another object": (keyed(JsonSerde()), keyed(JsonSerde())),
    "another module": (keyed(Cents()), keyed(MOVED())),
    "logged": (keyed(), keyed(logged=False)),
    "memory": (keyed(persistent=False), keyed(serdes.json, persistent=False)),
}


@pytest.mark.parametrize("what", SAME)
def test_what_changes_no_bytes_is_not_refused(tmp_path: Path, what: str) -> None:
    old, new = SAME[what]
    written(tmp_path, old)
    with opened(tmp_path, new):
        pass


def test_a_database_without_a_commit_takes_the_types_that_are_declared(tmp_path: Path) -> None:
    with opened(tmp_path, keyed(serdes.string)):
        pass  # a first start that met a record of another type, as it may be
    written(tmp_path, keyed())
    with pytest.raises(TopologyError, match="values of int64"), opened(tmp_path, keyed(serdes.json)):
        pass


def test_an_upgrade_to_timestamps_keeps_the_types(tmp_path: Path) -> None:
    written(tmp_path, keyed())
    changed = stores.timestamped_key_value("s", key=serdes.string, value=serdes.json)
    with pytest.raises(TopologyError, match="values of int64"), opened(tmp_path, changed):
        pass
    assert (tmp_path / "rocksdb" / "s").exists()
    with opened(tmp_path, replace(changed, value=serdes.int64)):
        pass


def read(partitions: Partitions, definition: StoreDefinition) -> PartitionAnswer | Failure:
    served = ServedStore(definition, Placement(0, 1, None))
    return partitions.ask(served, Terms("s", IsolationLevel.READ_COMMITTED), 0, KeyQuery(b"\0" * 30))


def test_a_server_does_not_answer_under_other_types(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    written(directory.task("0_0"), keyed())
    with closing(Partitions(directory, tmp_path / "scratch", Owned())) as partitions:
        refused = read(partitions, keyed(serdes.json))
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, NotReadyError)
        assert "values of int64, and is declared with values of json" in str(refused.error)
        assert isinstance(read(partitions, keyed()), PartitionAnswer)


def test_a_server_that_has_a_store_open_notices_types_that_are_declared_anew(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    task = directory.task("0_0")
    written(task, keyed())
    with closing(Partitions(directory, tmp_path / "scratch", Owned())) as partitions:
        assert isinstance(read(partitions, keyed()), PartitionAnswer)
        for path in (task / "rocksdb" / "s").iterdir():
            path.unlink()
        written(task, keyed(serdes.json))
        assert isinstance(read(partitions, keyed()), Failure)
        served = ServedStore(keyed(), Placement(0, 1, None))
        with pytest.raises(NotReadyError, match="values of json"):
            partitions.check(served, 0)


def keeping(value: Serde, kept: Any, **more: Any) -> App:
    """Keeps the same of each key."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=value, **more))

    @app.process(source, stores=[counts])
    def keep(record: Any, counts: Any) -> None:
        counts.put(record.key, kept)

    return app


SEVEN = (7).to_bytes(8, "big")


def test_a_worker_ends_and_an_answer_comes_again_with_the_old_declaration(place: Place) -> None:
    numbers, text = keeping(serdes.int64, 7), keeping(serdes.string, "7")
    place.send(entries("a"))
    place.work_off(numbers, place.config(numbers), 0)
    place.send(entries("a"))
    with pytest.raises(TopologyError, match=r"0_0/rocksdb/counts holds values of int64.*another application\.id"):
        place.work_off(text, place.config(text), 1)
    assert place.work_off(numbers, place.config(numbers), 1).rows("counts", 1) == {b"a": SEVEN}


REFUSED = "app-counts-changelog-0 holds values of int64, and is declared with values of string: declare it as it was"


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_changelog_says_its_types_where_the_files_are_lost(place: Place, guarantee: str, persistent: bool) -> None:
    numbers, text = (keeping(*each, persistent=persistent) for each in ((serdes.int64, 7), (serdes.string, "7")))
    config = place.config(numbers, processing__guarantee=guarantee)
    for n in (1, 2):
        place.send(entries("ab"))
        place.commit_once(numbers, config, 2 * n)
    place.lose_disk(config)
    place.send(entries("c"))
    with pytest.raises(TopologyError, match=f"{REFUSED}"):
        place.commit_once(text, config, 5)
    place.commit_once(numbers, config, 5)
    assert {value for _, value in place.changelog()} == {SEVEN}
    if persistent:
        assert place.stores(numbers, config).rows("counts", 1) == dict.fromkeys([b"a", b"b", b"c"], SEVEN)


def write(place: Place, key: bytes, offset: int, *more: tuple[str, bytes | None]) -> None:
    """A commit to the changelog that another program may have made."""
    with closing(place.log.producer()) as producer:
        headers = (*position_headers(Position.of({IN: offset})), *more)
        producer.produce(CHANGELOG_TOPIC, key, SEVEN, timestamp_ms=1, headers=headers)
        producer.flush()


@pytest.mark.parametrize("interrupted", [False, True])
def test_types_that_are_met_after_commits_without_leave_no_files_that_say_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    numbers, text = keeping(serdes.int64, 7), keeping(serdes.string, "7")
    config, commit, commits = place.config(numbers), StoreRestore.commit, list[int]()

    def counted(each: StoreRestore) -> None:
        commit(each)
        commits.append(each.next_offset)
        if interrupted and len(commits) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(StoreRestore, "commit", counted)
    monkeypatch.setattr(store_restore, "_BATCH_BYTES", 1)
    monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 1)
    create(place.log, {CHANGELOG_TOPIC: 1})
    place.send(entries("abc"))
    for offset, headers in enumerate([(), (), types_headers(keyed().types)]):
        write(place, b"%d" % offset, offset, *headers)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            place.commit_once(text, config, 3)
    with pytest.raises(TopologyError, match=f"{REFUSED}"):
        place.commit_once(text, config, 3)
    assert commits == [1, 2]
    place.commit_once(numbers, config, 3)
    assert place.stores(numbers, config).rows("counts", 1) == dict.fromkeys([b"0", b"1", b"2", b"a", b"b", b"c"], SEVEN)


def test_of_a_changelog_without_types_nothing_is_known(place: Place) -> None:
    create(place.log, {CHANGELOG_TOPIC: 1})
    place.send(entries("a"))
    write(place, b"z", -1, ("t", None))
    text = keeping(serdes.string, "7")
    assert place.work_off(text, place.config(text), 0).rows("counts", 1) == {b"a": b"7", b"z": SEVEN}


def test_the_types_of_a_changelog_are_those_of_its_newest_commit_that_says_them() -> None:
    end = position_headers(Position.of({IN: 1}))
    first, second = ((*end, *types_headers(keyed(value).types)) for value in (serdes.json, serdes.int64))
    records = [Record("log", 0, n, 0, b"a", b"1", headers) for n, headers in enumerate([first, second, ()])]
    assert types_of_changelog(records) == StoreTypes("string", "int64")
    assert types_of_changelog(records[2:]) is None
    for said, error, message in (
        (b"no JSON", DamagedDataError, "log-0 offset 3"),
        (b'{"key": "a", "value": "b", "unit": 1}', NewerFormatError, "log-0 at offset 3"),
    ):
        with pytest.raises(error, match=message):
            types_of_changelog([Record("log", 0, 3, 0, b"a", b"1", (*end, ("t", said)))])
