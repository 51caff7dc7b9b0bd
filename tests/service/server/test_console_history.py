"""`/v1/console/history`: how the service has been, over a real worker; the looks come quicker than they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline import App, serdes
from stateline.log import open_log
from stateline.log.interface import Log
from stateline.server.console import history
from stateline.server.console.history import QueryTimes, TimedCounts
from stateline.stores import key_value
from stateline_store import StoreState
from support.processes.query_server import TOPIC, OwningWorker, wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here

NAMES = ["ingest_per_s", "commits_per_s", "commit_age_ms", "lag", "queries_per_s", "p50_ms", "p99_ms",
         "restore_remaining"]  # fmt: skip


def declared() -> App:
    """Two subtopologies, orders that are counted, and prices; and a global table."""
    app = App("shop")
    orders = app.topic("orders", key=serdes.string, value=serdes.string)
    totals = app.store(key_value("totals", key=serdes.string, value=serdes.int64))
    app.table("prices", key=serdes.string, value=serdes.string)
    app.global_table("codes", key=serdes.string, value=serdes.string)

    @app.process(orders, stores=[totals])
    def count(record: Any, totals: Any) -> None:
        totals.put(record.key, (totals.get(record.key) or 0) + 1)

    return app


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Log]]:
    state_dir = tmp_path_factory.mktemp("h")
    config = configured(declared(), state_dir)
    with pytest.MonkeyPatch.context() as patched, closing(open_log(config.bootstrap_servers, state_dir)) as log:
        patched.setattr(history, "INTERVAL_S", 0.1)
        create(log, {"orders": 2, "prices": 1, "codes": 1})
        produce(log, "orders", [(b"a", b"1", 1), (b"b", b"1", 1), (b"c", b"1", 1)])
        produce(log, "prices", [(b"a", b"1", 1)])
        with running(declared(), config, log), served_here(state_dir, app=declared()) as here:
            yield here.client, log


def points(client: httpx.Client, **parameters: Any) -> list[dict[str, Any]]:
    answer = client.get("/v1/console/history", params=parameters).json()
    assert answer["names"] == NAMES
    return [dict(zip(["at_ms", *NAMES], point, strict=True)) for point in answer["points"]]


def test_it_is_kept_while_nobody_looks_and_comes_oldest_first(shop: tuple[httpx.Client, Log]) -> None:
    client, _ = shop
    wait_until(lambda: len(points(client)) > 3)
    found = points(client)
    assert [p["at_ms"] for p in found] == sorted(p["at_ms"] for p in found)
    assert found[0]["ingest_per_s"] is None, "there was nothing to compare with"
    later = points(client, since_ms=found[1]["at_ms"])
    assert later[: len(found) - 2] == found[2:]
    assert client.get("/v1/console/history?since=1").status_code == 422


def test_it_has_what_workers_copies_and_queries_tell(shop: tuple[httpx.Client, Log]) -> None:
    client, log = shop

    def seen(name: str) -> bool:
        return any(point[name] for point in points(client))

    wait_until(lambda: points(client)[-1]["ingest_per_s"] is not None)  # what came before the first look counts nowhere
    produce(log, "orders", [(b"a", b"2", 2)] * 100)
    wait_until(lambda: seen("ingest_per_s") and seen("commits_per_s"))  # workers tell once a second
    wait_until(lambda: client.get("/v1/stores/totals/keys/a").json()["value"] == 101)
    wait_until(lambda: seen("queries_per_s") and seen("p50_ms") and seen("p99_ms"))
    wait_until(lambda: points(client)[-1]["lag"] == 0)
    newest = points(client)[-1]
    assert newest["commit_age_ms"] >= 0
    assert newest["restore_remaining"] == 0


def test_quantiles_are_of_all_looks_and_the_rate_of_the_last_two() -> None:
    looks = [TimedCounts(0.0, [(0.1, 0), (1.0, 0), (None, 0)]), TimedCounts(5.0, [(0.1, 50), (1.0, 98), (None, 98)])]
    assert QueryTimes.between(looks[:1]) == (None, None, None)
    assert QueryTimes.between([*looks, TimedCounts(10.0, [(0.1, 50), (1.0, 99), (None, 100)])]) == (0.4, 100.0, 1000.0)
    began_anew = TimedCounts(10.0, [(0.1, 0), (1.0, 0), (None, 1)])
    assert QueryTimes.between([looks[1], began_anew]) == (0.0, None, None)


def test_what_a_restore_brings_back_is_not_taken_for_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL_S", 0.1)
    worker = OwningWorker(tmp_path)
    try:
        with served_here(tmp_path) as here:

            def rate() -> float | None:
                found: float | None = here.client.get("/v1/console/graph").json()["rates"][TOPIC]
                return found

            def look_again() -> None:
                count = len(points(here.client))
                wait_until(lambda: len(points(here.client)) > count + 2)

            look_again()
            worker.set_state(StoreState.RESTORING)
            look_again()
            worker.put_all({f"k{n}": n for n in range(100)})
            worker.commit()
            look_again()
            worker.set_state(StoreState.ACTIVE)
            look_again()
            assert rate() == 0
            worker.put("k", 1)
            worker.commit()
            wait_until(lambda: bool(rate()))
    finally:
        worker.close()
