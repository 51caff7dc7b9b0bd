"""Commits, aborts, crashes and restarts in a test driver: who sees what, under both guarantees."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from service.testing import orders
from stateline import App, Output, StoreView, serdes, stores
from stateline.testing import Record, TestDriver

EXACTLY_ONCE = "exactly_once_v2"


def seen(driver: TestDriver, store: str, key: str) -> tuple[Any, Any]:
    """At read_committed and at read_uncommitted."""
    found = driver.store(store)
    return tuple(found.get(key, isolation_level=level) for level in ("read_committed", "read_uncommitted"))


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_without_autocommit_stores_show_what_is_processed_to_read_uncommitted_alone(guarantee: str) -> None:
    with TestDriver(orders.made(processing__guarantee=guarantee), autocommit=False) as driver:
        driver.pipe("orders", "alice", {"amount": 3})
        assert seen(driver, "totals", "alice") == (None, 3)
        assert driver.store("totals").get("alice") == (None if guarantee == EXACTLY_ONCE else 3)
        assert driver.store("totals").position().to_json() == (
            {} if guarantee == EXACTLY_ONCE else {"orders": {"0": 0}}
        )
        driver.commit()
        assert seen(driver, "totals", "alice") == (3, 3)
        assert driver.store("totals").position(isolation_level="read_committed").to_json() == {"orders": {"0": 0}}


def test_exactly_once_what_is_forwarded_is_seen_with_the_commit() -> None:
    with TestDriver(orders.made(processing__guarantee=EXACTLY_ONCE), autocommit=False) as driver:
        driver.pipe("orders", "alice", {"amount": 300, "city": "Bath"})
        assert driver.read("large") == []
        assert seen(driver, "cities", "Bath") == (None, None)
        driver.commit()
        assert len(driver.read("large")) == 1
        assert seen(driver, "cities", "Bath") == (1, 1)  # processed, and committed, too


def test_at_least_once_what_is_forwarded_is_there_before_the_commit() -> None:
    with TestDriver(orders.made(), autocommit=False) as driver:
        driver.pipe("orders", "alice", {"amount": 300, "city": "Bath"}, timestamp_ms=1)
        assert driver.read("large") == [Record("alice", {"amount": 300, "city": "Bath"}, timestamp_ms=1)]
        assert seen(driver, "cities", "Bath") == (None, 1)


@pytest.mark.parametrize("end", ["abort", "crash"])
@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_what_is_not_committed_is_gone_after_an_abort_and_a_crash_and_its_input_is_read_again(
    guarantee: str, end: str
) -> None:
    with TestDriver(orders.made(processing__guarantee=guarantee)) as driver:
        driver.pipe("orders", "alice", {"amount": 1, "city": "Bath"})
        driver.autocommit = False
        driver.pipe("orders", "alice", {"amount": 200, "city": "Bath"})
        driver.pipe("orders", "alice", {"amount": 300, "city": "Bath"})
        assert seen(driver, "totals", "alice") == (1, 501)
        getattr(driver, end)()
        assert seen(driver, "totals", "alice") == (1, 1)
        driver.process()
        assert seen(driver, "totals", "alice") == (1, 501)
        driver.commit()
        assert seen(driver, "totals", "alice") == (501, 501)
        once = guarantee == EXACTLY_ONCE
        amounts = Counter(record.value["amount"] for record in driver.read("large"))
        assert amounts == ({200: 1, 300: 1} if once else {200: 2, 300: 2})
        assert driver.store("cities").get("Bath") == (3 if once else 5)


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_a_restart_commits_and_goes_on_with_the_same_state(guarantee: str) -> None:
    app = orders.made(processing__guarantee=guarantee)
    with TestDriver(app, autocommit=False, partitions={"orders": 2}) as driver:
        driver.pipe("orders", "alice", {"amount": 2})
        driver.restart()
        assert seen(driver, "totals", "alice") == (2, 2)
        driver.pipe("orders", "alice", {"amount": 3})
        assert seen(driver, "totals", "alice") == (2, 5)


@pytest.mark.parametrize("end", ["restart", "crash", "abort"])
def test_stores_in_memory_and_tables_are_restored(end: str) -> None:
    app = App("in-memory")
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.int64, persistent=False))
    app.table("names", key=serdes.string, value=serdes.string, persistent=False)

    @app.process("in", key=serdes.string, value=serdes.string, stores=[counts])
    def count(record: Any, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    with TestDriver(app) as driver:
        for _ in range(3):
            driver.pipe("in", "a", "x")
        driver.pipe("names", "a", "Ada")
        getattr(driver, end)()
        assert driver.store("counts").get("a") == 3
        assert driver.store("names").get("a") == "Ada"
        driver.pipe("in", "a", "x")
        assert driver.store("counts").get("a") == 4


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_rows_of_a_pipeline_of_whole_epochs_are_seen_micro_batch_by_micro_batch(guarantee: str) -> None:
    app = App("epochs", config={"processing.guarantee": guarantee})
    rows = app.topic("rows", **orders.TYPES)
    app.pipeline(reads=rows, writes="sums", key="k", name="sum_up", whole_epochs=True, partitions=3)(print)
    app.table("sums", **orders.TYPES)
    with TestDriver(app) as driver:
        driver.pipe_all("sums", [Record(f"k{n}", n) for n in range(20)])
        driver.pipe("sums", "k3", 33)
        wanted: dict[str, Any] = {f"k{n}": 33 if n == 3 else n for n in range(20)}
        for end in ("abort", "restart", "crash"):
            kept = {entry.key: entry.value for entry in driver.store("sums").all(isolation_level="read_committed")}
            assert kept == wanted
            asked = driver.client.get("/v1/stores/sums/keys/k3", params={"isolation_level": "read_committed"})
            assert asked.json()["value"] == wanted["k3"], asked.text
            getattr(driver, end)()
            driver.pipe("sums", "k4", end)
            wanted["k4"] = end
        driver.autocommit = False
        driver.pipe("sums", "k3", 34)
        assert seen(driver, "sums", "k3") == (33, 34)
        driver.commit()
        assert seen(driver, "sums", "k3") == (34, 34)


def ticking(on: Any, guarantee: str = "at_least_once") -> App:
    app = App("ticking", config={"processing.guarantee": guarantee})
    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.int64))
    ticks = app.topic("ticks", key=serdes.string, value=serdes.int64)

    @app.process("in", key=serdes.string, value=serdes.string, stores=[kept])
    def count(record: Any, kept: StoreView) -> None:
        kept.put("n", (kept.get("n") or 0) + 1)

    @app.punctuate(every=timedelta(seconds=1), on=on, stores=[kept], forwards=[ticks])
    def tick(at: int, kept: StoreView, ticks: Output) -> None:
        ticks.forward("n", kept.get("n") or 0, timestamp_ms=at)
        kept.put("n", 0)

    return app


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_functions_by_the_clock_are_called_when_it_is_moved_and_what_they_write_is_committed(guarantee: str) -> None:
    with TestDriver(ticking("wall_clock_time", guarantee), wall_clock_ms=10_500) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=99_000_000)
        assert driver.read("ticks") == []
        driver.advance_wall_clock(999)
        assert driver.read("ticks") == []
        driver.advance_wall_clock(timedelta(milliseconds=1))
        assert driver.read("ticks") == [Record("n", 1, timestamp_ms=11_500)]
        assert driver.store("kept").get("n", isolation_level="read_committed") == 0
        driver.advance_wall_clock(5_200)  # once, however much has passed; then at multiples again
        driver.advance_wall_clock(799)
        assert driver.read("ticks") == [Record("n", 0, timestamp_ms=16_700)]
        driver.advance_wall_clock(1)
        assert driver.read("ticks") == [Record("n", 0, timestamp_ms=17_500)]


def test_functions_by_stream_time_are_called_by_timestamps_alone() -> None:
    with TestDriver(ticking("stream_time"), wall_clock_ms=0) as driver:
        for at in (100, 500, 999, 1_000, 1_500, 900, 4_200):
            driver.pipe("in", "a", "x", timestamp_ms=at)
        driver.advance_wall_clock(timedelta(days=1))
        assert [(r.timestamp_ms, r.value) for r in driver.read("ticks")] == [(100, 1), (1_000, 3), (4_200, 3)]
