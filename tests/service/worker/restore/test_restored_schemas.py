"""A table that is restored by code, or from a registry, that cannot read what was written before."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Scene
from service.worker.tasks.test_task_stores import CHANGELOG, of_bytes, opened
from stateline import App, InputRecord, StoreView, serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.serde.binding import bound
from stateline.serde.schema_registry import SchemaRegistry
from stateline_store import (
    KeyValueStore,
    RecordError,
    SchemaRegistryUnavailableError,
    SessionStore,
    StateStore,
    TopologyError,
    VersionedStore,
    Windowed,
    WindowStore,
)
from support.apps.global_app import code, pair

FIELDS: list[dict[str, Any]] = [{"name": "city", "type": "string"}]
SALE: dict[str, Any] = {"type": "record", "name": "Sale", "namespace": "shop", "fields": FIELDS}
MORE = [*FIELDS, {"name": "amount", "type": "long"}]  # without a default: nothing says what it was


def application(fields: list[dict[str, Any]]) -> App:
    app = App("evolved", config={"schema.registry.url": "mock://restored"})
    schema: Any = {"type": "record", "name": "Sale", "namespace": "shop", "fields": fields}
    topic = app.topic("in", key=serdes.string, value=serdes.avro(schema))
    app.table(topic, store="kept")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.string))

    @app.process(topic, stores=[seen])
    def see(record: InputRecord, seen: StoreView) -> None:
        seen.put(record.key, "yes")

    return app


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_rows_that_cannot_be_read_any_more_end_the_worker_or_are_said(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(application(FIELDS), tmp_path, partitions=1, settings={"deserialization.exception.handler": policy})
    value = scene.app.topology().topics_read()["in"].value
    scene.send("in", [(f"k{n}", value.serialize({"city": "Bath"}), 1_000 + n) for n in range(5)])
    scene.work_off()
    assert len(scene.rows("kept")) == 5
    shutil.rmtree(scene.config.state_dir)
    scene.app = application(MORE)
    scene.send("in", [("k5", None, 5_000)])
    if policy == "fail":
        with pytest.raises(RecordError, match="Reading failed on in-0 offset 0"):
            scene.work_off()
        scene.app = application(FIELDS)
        scene.work_off()
        assert len(scene.rows("kept")) == 5
    else:
        scene.work_off()
        assert "5 records of in-0 were left out of table kept: they cannot be read" in caplog.text


def test_a_start_refuses_a_store_whose_rows_the_declared_schema_cannot_read_and_the_old_one_goes_on(
    tmp_path: Path,
) -> None:
    scene = Scene(application(FIELDS), tmp_path, partitions=1)
    value = scene.app.topology().topics_read()["in"].value
    scene.send("in", [("a", value.serialize({"city": "Bath"}), 1_000)])
    scene.work_off()
    scene.app = application(MORE)
    scene.send("in", [("b", None, 2_000)])
    with pytest.raises(
        TopologyError, match=r"'kept' of task 0_0 .*avro\(shop.Sale\).*amount.*reset.*--store kept"
    ) as refused:
        scene.work_off()
    assert str(refused.value).count("--store kept") == 1
    scene.app = application([*FIELDS, {"name": "amount", "type": "long", "default": 0}])
    scene.work_off()
    scene.app = application(FIELDS)
    scene.send("in", [("c", None, 3_000)])
    scene.work_off()
    assert len(scene.rows("kept")) == 1


@dataclass
class Sale:
    city: str


@dataclass
class PricedSale(Sale):
    amount: int


PricedSale.__qualname__ = "Sale"  # as one class is before a change of the code, and after it
DAY = timedelta(days=1)


def own_store(kind: str, model: type) -> StoreDefinition:
    types: dict[str, Any] = {"key": serdes.string, "value": serdes.model(model)}
    match kind:
        case "window":
            return stores.window("s", size=DAY, retention=2 * DAY, timestamped=True, **types)
        case "session":
            return stores.session("s", retention=2 * DAY, **types)
        case "versioned":
            return stores.versioned("s", history=DAY, **types)
        case "timestamped":
            return stores.timestamped_key_value("s", **types)
    return stores.key_value("s", **types)


@pytest.mark.parametrize("kind", ["key_value", "timestamped", "window", "session", "versioned"])
def test_a_store_of_each_kind_is_refused_that_a_changed_class_cannot_read(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, own_store(kind, Sale)) as made:
        put_one(made.by_name["s"], b'{"city":"Bath"}')
        made.commit({"s": {CHANGELOG: 0}})
    with (
        pytest.raises(TopologyError, match=r"'s' of task 0_0 .*model\(Sale\): amount"),
        opened(tmp_path, own_store(kind, PricedSale)),
    ):
        pass


def test_so_is_one_whose_keys_it_cannot_read(tmp_path: Path) -> None:
    def keyed(model: type) -> StoreDefinition:
        return stores.key_value("s", key=serdes.model(model), value=serdes.string)

    with opened(tmp_path, keyed(Sale)) as made:
        of_bytes(made.by_name["s"]).put(b'{"city":"Bath"}', b"v")
        made.commit({"s": {CHANGELOG: 0}})
    with pytest.raises(TopologyError, match=r"model\(Sale\): amount"), opened(tmp_path, keyed(PricedSale)):
        pass


def test_a_standby_is_followed_whose_rows_this_node_s_class_cannot_read(tmp_path: Path) -> None:
    with opened(tmp_path, own_store("key_value", Sale)) as made:
        put_one(made.by_name["s"], b'{"city":"Bath"}')
        made.commit({"s": {CHANGELOG: 0}})
    with opened(tmp_path, own_store("key_value", PricedSale), is_standby=True) as made:
        assert of_bytes(made.by_name["s"]).get(b"a") == b'{"city":"Bath"}'


def test_a_store_is_opened_while_the_registry_that_has_its_schemas_is_away(tmp_path: Path) -> None:
    away = SchemaRegistry({"url": "http://127.0.0.1:1", "max.retries": 0})
    value = bound(serdes.avro(SALE), CHANGELOG.topic, "value", away)
    declared = stores.key_value("s", key=serdes.string, value=value)
    row = b"\0\0\0\0\1\x08Bath"
    with opened(tmp_path, declared) as made:
        put_one(made.by_name["s"], row)
        made.commit({"s": {CHANGELOG: 0}})
    with pytest.raises(SchemaRegistryUnavailableError):
        value.check(row)
    with opened(tmp_path, declared) as made:
        assert of_bytes(made.by_name["s"]).get(b"a") == row


def put_one(store: StateStore, value: bytes) -> None:
    match store:
        case SessionStore():
            store.put(Windowed(b"a", 1_000, 1_000), value)
        case VersionedStore() | WindowStore():
            store.put(b"a", value, 1_000)
        case KeyValueStore():
            store.put(b"a", value)


def test_so_is_a_global_table(tmp_path: Path) -> None:
    def codes(fields: list[dict[str, str]]) -> App:
        app = App("codes-app", config={"schema.registry.url": "mock://codes"})
        schema: Any = {"type": "record", "name": "Code", "namespace": "shop", "fields": fields}
        table = app.global_table("codes", key=serdes.string, value=serdes.avro(schema))
        app.stream("rows", key=serdes.string, value=serdes.string).left_join(table, pair, on=code).to("out")
        return app

    scene = Scene(codes(FIELDS), tmp_path, partitions=1)
    (source,) = {each.source for each in scene.app.topology().global_tables.values()}
    assert source is not None
    scene.send("codes", [("a", source.value.serialize({"city": "Bath"}), 1_000)])
    scene.send("rows", [("k", "a", 1_000)])
    scene.work_off()
    scene.app = codes(MORE)
    scene.send("rows", [("k", "a", 2_000)])
    with pytest.raises(TopologyError, match=r"'codes' of the global tables .*amount.*--store codes") as refused:
        scene.work_off()
    assert str(refused.value).count("--store codes") == 1
