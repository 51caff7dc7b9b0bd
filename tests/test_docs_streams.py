"""The pages on streams, joins and functions are true: their application runs, and their tables name every method."""

from __future__ import annotations

import inspect
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from stateline import App, serdes
from stateline.config.loading import load_config
from stateline.dsl.cogrouped import CogroupedStream
from stateline.dsl.grouped_tables import GroupedTable
from stateline.dsl.streams import GroupedStream, Stream, Table, WindowedStream, WindowedTable
from stateline.log import open_log
from stateline.model.internal_topics import required_topics
from stateline.serde.windowed import SessionKey, WindowKey
from stateline.testing import TestDriver
from support.processes.running_worker import Stores, create, eventually, produce, read_all, running
from test_docs import ROOT, blocks, document

FUNCTIONS = document("docs/stream-functions.md").partition("## Several topics")[
    0
]  # what follows has its own application
TEXT = document("docs/streams.md") + document("docs/joins.md") + FUNCTIONS


def declared() -> App:
    scope: dict[str, Any] = {}
    exec("\n\n".join(blocks(TEXT, "python")), scope)
    app = scope["app"]
    assert isinstance(app, App)
    return app


def test_every_method_is_named() -> None:
    named = set(re.findall(r"(?:`|\.)([a-z_]+)\(", TEXT))
    for kind in (Stream, GroupedStream, Table):
        methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        assert methods <= named | {"filter_not"}, kind


def test_what_the_table_of_operators_says_of_the_worker_exists() -> None:
    kinds = (App, Stream, GroupedStream, CogroupedStream, Table, GroupedTable, WindowedStream, WindowedTable)
    methods = {name for kind in kinds for name in dir(kind)}
    lines = [line.split(" | ") for line in document("docs/operators.md").splitlines() if line.startswith("| ")]
    cells = [(row[0], row[1]) for row in lines if row[0] != "| Kafka Streams"]
    assert len(cells) > 30
    for operator, cell in cells:
        named = set(re.findall(r"[`.]\.?([a-z_]+)\(", cell)) | set(re.findall(r"@app\.(\w+)", cell))
        assert cell, operator
        assert named <= methods | {"until_window_closes", "until_time_limit", "on_window_close"}, operator


def test_members_of_windowed_keys_are_named() -> None:
    window, session = (" and ".join(kind._fields[-2:]) for kind in (WindowKey, SessionKey))
    said = TEXT.replace("`", "")
    assert f"The key of a window has the members {window}." in said
    assert f"The key of a session has {SessionKey._fields[0]}, {session}." in said


def test_each_aggregate_of_a_table_of_a_page_has_its_value() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    calls = [(page, each) for page, text in pages.items() for each in re.findall(r"aggregate\(initial[^)]*\)", text)]
    assert len(calls) > 8
    assert [(page.name, each) for page, each in calls if "value=" not in each] == []


def test_the_application_that_it_shows_does_what_it_says(tmp_path: Path) -> None:
    app = declared()
    settings = [f"state.dir={tmp_path}", "commit.interval.ms=50"]
    config = load_config(app.application_id, defaults=app.config, overrides=settings, environment={})
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, dict.fromkeys(required_topics(app.topology()), 2))
        produce(log, "customers", [(b"ada", b'{"name": "Ada"}', 1)])
        produce(log, "addresses", [(b"ada", b"High Street", 2)])
        produce(log, "parcels", [(b"p1", b'{"to": "ada"}', 3)])
        produce(log, "cities", [(b"Bath", b'{"country": "England"}', 1)])
        order = {"amount": 3000, "city": "Bath"}
        produce(log, "orders", [(b"ada", orjson.dumps(order), 3), (b"bob", b'{"amount": 1, "city": "Bath"}', 4)])
        stores = Stores(app, config, tmp_path / "scratch")
        with running(app, config, log), closing(stores):
            counted = serdes.int64.serialize
            eventually(lambda: stores.rows("orders_in", 2) == {b"Bath": counted(2)}, "cities are counted")
            eventually(lambda: len(read_all(log, "shipments", 2)) == 1, "Ada's order is shipped")
            assert stores.rows("orders_of", 2) == {b"ada": counted(1), b"bob": counted(1)}
            (shipment,) = read_all(log, "shipments", 2)
            assert (shipment.key, shipment.timestamp_ms) == (b"ada", 3)
            assert orjson.loads(shipment.value or b"") == {**order, "to": {"name": "Ada", "street": "High Street"}}
            eventually(lambda: len(read_all(log, "by-country", 2)) == 1, "it has its country")
            assert orjson.loads(read_all(log, "by-country", 2)[0].value or b"") == {**order, "country": "England"}
            assert [record.key for record in read_all(log, "large-orders", 2)] == [b"ada"]
            assert [record.key for record in read_all(log, "orders-elsewhere", 1)] == [b"ada"]  # partition 0
            label = orjson.dumps({"to": "ada", "street": "High Street"})
            eventually(lambda: stores.rows("labels", 2) == {b"p1": label}, "the parcel has its street")
            assert read_all(log, "city-counts", 2)[-1].value == counted(2)


def test_the_windows_that_it_shows_leave_once_when_they_close() -> None:
    with TestDriver(declared()) as driver:
        for number, at_ms in enumerate((1_000, 2_000, 61_000, 89_999)):
            driver.pipe("clicks", "ada", {"seconds": number}, timestamp_ms=at_ms)
        assert driver.read("last-clicks") == driver.read("minutes-done") == []
        driver.pipe("clicks", "bob", {"seconds": 9}, timestamp_ms=90_000)
        (last,), (done,) = driver.read("last-clicks"), driver.read("minutes-done")
        assert (last.key, last.value, last.timestamp_ms) == (done.key, {"seconds": 1}, done.timestamp_ms)
        assert (last.key.key, last.key.start_ms, done.value) == ("ada", 0, 2)


def test_an_order_gets_the_late_discount_of_its_own_time() -> None:
    with TestDriver(declared()) as driver:
        noon_ms, minute_ms = 43_200_000, 60_000
        driver.pipe("orders", "ada", {"amount": 1, "city": "Bath"}, timestamp_ms=noon_ms)
        driver.pipe("discounts", "ada", 20, timestamp_ms=noon_ms + minute_ms)
        driver.pipe("discounts", "ada", 10, timestamp_ms=noon_ms - minute_ms)
        assert driver.read("priced-orders") == []
        assert len(list(driver.store("priced-Buffer").all())) == 1
        driver.pipe("orders", "bob", {"amount": 2, "city": "Bath"}, timestamp_ms=noon_ms + 5 * minute_ms)
        assert [(row.key, row.value["percent"]) for row in driver.read("priced-orders")] == [("ada", 10)]


def test_an_old_price_that_comes_late_changes_no_offer() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("stock", "tea", 5, timestamp_ms=1_000)
        driver.pipe("prices", "tea", 4, timestamp_ms=2_000)
        driver.pipe("prices", "tea", 3, timestamp_ms=500)
        assert driver.store("offers").get("tea") == {"price": 4, "count": 5}
        assert driver.store("cheap").get("tea", as_of=600) == 3
