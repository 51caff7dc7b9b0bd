"""How many records of its input a store lacks, as the console has it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline import App, serdes
from stateline.log import open_log
from stateline.server.console import history
from stateline.server.console.state import InputLag
from stateline.stores import key_value
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here


def test_the_partition_that_lags_is_told_with_the_topic_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("shop")
    orders = app.topic("orders", key=serdes.string, value=serdes.string)
    totals = app.store(key_value("totals", key=serdes.string, value=serdes.string))
    app.table("prices", key=serdes.string, value=serdes.string)

    @app.process(orders, stores=[totals])
    def count(record: Any, totals: Any) -> None:
        totals.put(record.key, record.value)

    config = configured(app, tmp_path)
    monkeypatch.setattr(history, "INTERVAL_S", 0.1)
    with closing(open_log(config.bootstrap_servers, tmp_path)) as log:
        create(log, {"orders": 2, "prices": 1})
        produce(log, "prices", [(b"a", b"1", 1)])
        produce(log, "orders", [(b"a", b"goes", 1)])
        with running(app, config, log), served_here(tmp_path, app=app) as here:

            def lag(store: str) -> tuple[int | None, dict[str, Any]]:
                body = here.client.get("/v1/console", params={"store": store}).json()
                (found,) = (each for each in body["stores"] if each["store"] == store)
                return found["input_lag"], {n: p["input_lag"] for n, p in body["partitions"].items()}

            wait_until(lambda: lag("totals") == (0, {"0": {"orders": 0}, "1": {"orders": 0}}))
            assert lag("prices") == (0, {"0": {"prices": 0}})
            told = here.client.get("/v1/console").json()["workers"]
            assert told["worker-0"]["failed"] == 0
            assert told["worker-0"]["told_at_ms"] > 0


def test_a_store_lacks_only_what_it_follows_and_what_nobody_reads_is_not_known() -> None:
    app = App("shop")
    for topic in ("prices", "stock"):
        app.table(topic, key=serdes.string, value=serdes.string)
    app.global_table("codes", key=serdes.string, value=serdes.string)
    lag = InputLag(app.topology())
    lag.see([{"0_1": {"prices": 7}, "1_0": {"stock": 3}}, {"global": {"codes": 2}}])
    assert lag.of("prices", "0_1") == {"prices": 7}
    assert lag.of("prices", "0_0") is None, "no worker of this node"
    assert lag.of("stock", "1_0") == {"stock": 3}
    assert lag.of("codes", "global") == {"codes": 2}
    assert lag.of("codes", "0_1") is None, "another store's input"
