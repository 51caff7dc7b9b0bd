"""A store that is declared with other types, or other windows, than it was written with: noticed, and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.faults import Place, entries
from service.worker.test_task_stores import CHANGELOG, opened
from stateline import serdes, stores
from stateline.app import App
from stateline.query import Answer, Failure, KeyQuery, Terms
from stateline.serde import JsonSerde, Serde, StringSerde
from stateline.server.deployment import Placement
from stateline.server.partitions import Partitions, ServedStore
from stateline.store_definition import StoreDefinition
from stateline.streams.windows import SessionWindows, TumblingWindows
from stateline.windowed_serde import WindowedSerde
from stateline_store import IsolationLevel, NotReadyError, StateDirectory, TopologyError, TransactionalStore
from stateline_store.rocksdb_engine import RocksDBEngine

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
    with pytest.raises(TopologyError, match=f"{said}.*: declare it as it was, or give"), opened(tmp_path, new):
        pass
    with opened(tmp_path, old) as made:
        assert made.committed_offset("s") == 7


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


def test_an_older_database_and_one_without_a_commit_take_the_types_that_are_declared(tmp_path: Path) -> None:
    with opened(tmp_path, keyed(serdes.string)):
        pass  # a first start that met a record of another type, as it may be
    written(tmp_path, keyed())
    engine = RocksDBEngine(tmp_path / "rocksdb" / "s")
    del engine._offsets[b"types"]
    engine.close()
    with opened(tmp_path, keyed()):
        pass
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


def read(partitions: Partitions, definition: StoreDefinition) -> Answer | Failure:
    served = ServedStore(definition, Placement(0, 1, None))
    return partitions.ask(served, Terms("s", IsolationLevel.READ_COMMITTED), 0, KeyQuery(b"\0" * 30))


def test_a_server_does_not_answer_under_other_types(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    written(directory.task("0_0"), keyed())
    with closing(Partitions(directory, tmp_path / "scratch", lambda _: True)) as partitions:
        refused = read(partitions, keyed(serdes.json))
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, NotReadyError)
        assert "values of int64, and is declared with values of json" in str(refused.error)
        assert isinstance(read(partitions, keyed()), Answer)


def test_a_server_that_has_a_store_open_notices_types_that_are_declared_anew(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    task = directory.task("0_0")
    written(task, keyed())
    with closing(Partitions(directory, tmp_path / "scratch", lambda _: True)) as partitions:
        assert isinstance(read(partitions, keyed()), Answer)
        for path in (task / "rocksdb" / "s").iterdir():
            path.unlink()
        written(task, keyed(serdes.json))
        assert isinstance(read(partitions, keyed()), Failure)
        served = ServedStore(keyed(), Placement(0, 1, None))
        with pytest.raises(NotReadyError, match="values of json"):
            partitions.check(served, 0)


def test_a_worker_ends_and_an_answer_comes_again_with_the_old_declaration(place: Place) -> None:
    def summing(value: Serde, first: Callable[[], Any]) -> App:
        app = App("app")
        source = app.topic("in", key=serdes.string, value=serdes.json)
        sums = app.store(stores.key_value("counts", key=serdes.string, value=value))

        @app.process(source, stores=[sums])
        def count(record: Any, sums: Any) -> None:
            sums.put(record.key, sums.get(record.key) or first())

        return app

    whole, text = summing(serdes.int64, lambda: 7), summing(StringSerde(), lambda: "7")
    place.send(entries("a"))
    place.work_off(whole, place.config(whole), 0)
    place.send(entries("a"))
    with pytest.raises(TopologyError, match=r"0_0/rocksdb/counts holds values of int64.*another application\.id"):
        place.work_off(text, place.config(text), 1)
    assert place.work_off(whole, place.config(whole), 1).rows("counts", 1) == {b"a": (7).to_bytes(8, "big")}
