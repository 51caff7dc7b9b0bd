"""Applications with serdes of a Schema Registry, run by the test driver with a registry in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from stateline import App, InputRecord, StoreView, TumblingWindows, serdes, stores
from stateline.serde.schema_registry import SchemaRegistry
from stateline.testing import TestDriver
from stateline_store import RecordError, SchemaRegistryUnavailableError, TopologyError

SALE = {
    "type": "record",
    "name": "Sale",
    "namespace": "shop",
    "fields": [{"name": "city", "type": "string"}, {"name": "amount", "type": "long"}],
}
KEY = {"type": "record", "name": "Customer", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
TOTAL = {"type": "record", "name": "Total", "namespace": "shop", "fields": [{"name": "amount", "type": "long"}]}
_AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_SEEN = {"type": "record", "name": "Seen", "fields": [_AT]}
TIMED = {"type": "record", "name": "Sighting", "fields": [{"name": "seen", "type": _SEEN}]}
ID = UUID("0198c0de-0000-7000-8000-0000000000ab")
_numbers = count()


def shop() -> tuple[App, str]:
    """An application with each kind of step that writes keys or values; and its registry."""
    url = f"mock://driver-{next(_numbers)}"
    app = App("shop", config={"schema.registry.url": url})
    sales = app.topic("sales", key=serdes.avro(KEY), value=serdes.avro(SALE))
    app.topic("large", key=serdes.avro(KEY), value=serdes.avro(TOTAL))
    table = app.ktable(app.table(sales))
    totals = app.store(stores.key_value("totals", key=serdes.avro(KEY), value=serdes.avro(TOTAL)))

    @app.process(sales, stores=[totals])
    def add_up(sale: InputRecord, totals: StoreView) -> None:
        before = totals.get(sale.key) or {"amount": 0}
        totals.put(sale.key, {"amount": before["amount"] + sale.value["amount"]})

    stream = app.stream(sales)
    grouped = stream.group_by_key()
    grouped.count("counts")
    grouped.reduce(lambda one, other: {**other, "amount": one["amount"] + other["amount"]}, "reduced")
    grouped.aggregate(lambda: {"amount": 0}, added, "aggregated", value=serdes.avro(TOTAL))
    windows = grouped.windowed_by(TumblingWindows(timedelta(minutes=1)))
    windows.aggregate(lambda: {"amount": 0}, added, "windows", value=serdes.avro(TOTAL))
    table.map_values(lambda _, sale: {"amount": -sale["amount"]}, "negative", value=serdes.avro(TOTAL))
    only = stream.map_values(lambda _, sale: {"amount": sale["amount"] * 2}, value=serdes.avro(TOTAL))
    only.filter(lambda _, total: total["amount"] > 10).to("large")
    by_city = stream.select_key(lambda _, sale: sale["city"], key=serdes.avro('"string"')).repartition("by-city")
    by_city.group_by_key().count("cities")
    return app, url


def added(_: Any, sale: dict[str, int], total: dict[str, int]) -> dict[str, int]:
    return {"amount": total["amount"] + sale["amount"]}


def test_every_step_reads_and_writes_avro_and_stores_are_found_by_keys_over_http() -> None:
    app, url = shop()
    with TestDriver(app) as driver:
        driver.pipe("sales", {"id": "ann"}, {"city": "Bern", "amount": 4}, timestamp_ms=1_000)
        driver.pipe("sales", {"id": "ann"}, {"city": "Bern", "amount": 9}, timestamp_ms=2_000)
        found = {name: driver.store(name).get({"id": "ann"}) for name in ("totals", "counts", "reduced", "aggregated")}
        assert found == {
            "totals": {"amount": 13},
            "counts": 2,
            "reduced": {"city": "Bern", "amount": 13},
            "aggregated": {"amount": 13},
        }
        assert driver.store("negative").get({"id": "ann"}) == {"amount": -9}
        assert driver.store("cities").get("Bern") == 2
        assert [(one.key, one.value) for one in driver.read("large")] == [({"id": "ann"}, {"amount": 18})]
        client = driver.client
        answer = client.get("/v1/stores/totals/keys/%7B%22id%22%3A%22ann%22%7D").json()
        assert (answer["key"], answer["value"]) == ({"id": "ann"}, {"amount": 13})
        assert client.get("/v1/stores/totals").json()["value_type"] == "avro(shop.Total)"
        assert client.get("/v1/stores/cities/keys/Bern").json()["value"] == 2
    assert set(SchemaRegistry({"url": url}).client().get_subjects()) >= {
        "sales-key",
        "sales-value",
        "large-value",
        "shop-totals-changelog-key",
        "shop-totals-changelog-value",
        "shop-aggregated-changelog-value",
        "shop-negative-changelog-value",
        "shop-by-city-repartition-key",
    }


def test_a_record_that_no_serializer_of_a_registry_wrote_goes_by_the_policy() -> None:
    app, _ = shop()
    with TestDriver(app, config={"deserialization.exception.handler": "skip"}) as driver:
        driver.pipe_bytes("sales", b"ann", b"{}")
        assert driver.store("counts").all() == []
    app, _ = shop()
    with TestDriver(app) as driver, pytest.raises(RecordError, match="it does not begin with 0 and a schema's id"):
        driver.pipe_bytes("sales", b"ann", b"{}")


def test_a_registry_that_is_away_ends_the_worker_and_no_policy_leaves_records_out_for_it() -> None:
    app, _ = shop()
    policies = {"deserialization.exception.handler": "skip", "processing.exception.handler": "skip"}
    away = {"schema.registry.url": "http://127.0.0.1:9", "schema.registry.max.retries": "0", **policies}
    with TestDriver(app, config=away) as driver, pytest.raises(SchemaRegistryUnavailableError):
        driver.pipe_bytes("sales", b"\x00\x00\x00\x00\x01\x06ann", b"\x00\x00\x00\x00\x02\x08Bern\x08")


@pytest.mark.parametrize("make", [lambda: serdes.avro(TIMED), lambda: serdes.msgpack], ids=["avro", "msgpack"])
def test_a_field_of_such_a_value_can_be_the_time_of_its_record(make: Callable[[], Any]) -> None:
    app = App("timed", config={"schema.registry.url": f"mock://timed-{next(_numbers)}"})
    app.table(app.topic("seen", key=serdes.string, value=make(), timestamp="seen.at"))
    with TestDriver(app) as driver:
        driver.pipe("seen", "ann", {"seen": {"at": datetime(2026, 5, 1, tzinfo=UTC)}})
        entry = driver.store("seen").entry("ann")
        assert entry is not None
        assert entry.timestamp == datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000


def test_rows_in_ndjson_and_arrow_have_the_json_of_avro_values_uuids_as_text_and_times_as_times() -> None:
    app = App("rows", config={"schema.registry.url": f"mock://rows-{next(_numbers)}"})
    app.table(app.topic("totals", key=serdes.uuid, value=serdes.avro(TOTAL)))
    app.table(app.topic("seen", key=serdes.string, value=serdes.datetime))
    at = datetime(2026, 5, 1, tzinfo=UTC)
    with TestDriver(app) as driver:
        driver.pipe("totals", ID, {"amount": 13})
        driver.pipe("seen", "ann", at)
        ask = {"Accept": "application/x-ndjson"}
        line = driver.client.get("/v1/stores/totals/range", headers=ask).text.splitlines()[0]
        assert line.startswith(f'{{"key":"{ID}","value":{{"amount":13}},')
        totals, seen = (rows_of(driver, name) for name in ("totals", "seen"))
        assert [(row["key"], row["value"]) for row in totals] == [(str(ID), '{"amount":13}')]
        assert [(row["key"], row["value"]) for row in seen] == [("ann", at)]
        columns = driver.client.get("/v1/stores/seen").json()["columns"]
        assert [column["type"] for column in columns] == ["string", "timestamp", "int64"]


def rows_of(driver: TestDriver, store: str) -> list[dict[str, Any]]:
    headers = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = driver.client.get(f"/v1/stores/{store}/range", headers=headers)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    return rows


def test_a_pipeline_that_spark_could_not_read_is_refused_where_it_is_declared() -> None:
    app = App("piped")
    parsed = app.topic("parsed", key=serdes.string, value=serdes.avro(TOTAL), schema="amount long")
    timed = app.topic("timed", key=serdes.string, value=serdes.avro(TIMED), timestamp="seen.at")
    for topic, message in ((parsed, "leave schema= out"), (timed, "leave `timestamp` out")):
        with pytest.raises(TopologyError, match=message):

            @app.pipeline(reads=topic, writes="results", key="k")
            def results(rows: Any) -> Any:
                return rows
