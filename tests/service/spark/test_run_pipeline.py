"""`run_pipeline`: a pipeline of an application on the rows of a test."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from service.spark import departures as d
from service.spark import test_windowed_results as windowed
from stateline import App, serdes
from stateline.serde.windowed import SessionKey
from stateline.testing import Record, run_pipeline
from stateline_store import CallerError, DoesNotExistError, InvalidArgumentError
from support.run.length import long_only
from test_docs import blocks, document

MINUTE, START = 60_000, 1_356_998_400_000
TYPES: dict[str, Any] = {"key": serdes.string, "value": serdes.json}


def shop() -> App:
    app = App("shop")
    orders = app.topic("orders", schema="city string, amount int", **TYPES)
    names = app.topic("names", schema="name string", **TYPES)
    app.table("prices", key=serdes.string, value=serdes.float64)

    @app.pipeline(reads=orders, static=[names], writes="revenue", key="city")
    def revenue(orders: DataFrame, names: DataFrame) -> DataFrame:
        sums = orders.groupBy("city").sum("amount").withColumnRenamed("sum(amount)", "amount")
        named = names.select(names["_key"].alias("city"), "name")
        return sums.join(named, "city", "left")

    @app.pipeline(reads=[], tables=["prices"], writes="dear", key="_key")
    def dear(prices: Any) -> Any:
        return prices.filter("value > 100")

    app.table("revenue", **TYPES)
    return app


def test_the_rows_that_a_pipeline_makes_of_given_rows_come_back(session: SparkSession) -> None:
    given = [("a", "Bath", 3), ("b", "York", 5), ("a", "Bath", 4)]
    rows = run_pipeline(
        shop(),
        "revenue",
        {
            "orders": [Record(key, {"city": city, "amount": amount}, timestamp_ms=1) for key, city, amount in given],
            "names": [Record("Bath", {"name": "Aquae Sulis"})],
        },
        session=session,
    )
    found = {row["_key"]: {name: value for name, value in row.items() if name[0] != "_"} for row in rows}
    assert found == {
        "Bath": {"city": "Bath", "amount": 7, "name": "Aquae Sulis"},
        "York": {"city": "York", "amount": 5, "name": None},
    }
    assert all(isinstance(row["_timestamp"], int) for row in rows)


def test_a_table_gives_rows_and_tombstones(session: SparkSession) -> None:
    changes = [Record("a", 120.0, 1), Record("b", 50.0, 2), Record("a", None, 3), Record("c", 101.0, 4)]
    rows = run_pipeline(shop(), "dear", {"prices": changes}, session=session)
    newest = {row["_key"]: row for row in rows}
    assert newest["c"] == {"_key": "c", "_timestamp": newest["c"]["_timestamp"], "value": 101.0}
    assert [key for key, row in sorted(newest.items()) if row.get("_deleted")] == ["a", "b"]


def test_windows_of_random_rows_are_those_of_the_oracle(session: SparkSession) -> None:
    made = d.random_departures(300, seed=4)
    departures = [
        Record(f"{origin}{n}", {"origin": origin, "at": d.iso(at), "delay": delay}, at)
        for n, (origin, at, delay) in enumerate(made)
    ]
    airports = [Record(code, {"name": name}) for code, name in d.AIRPORTS.items()]
    rows = run_pipeline(d.app, "hourly", {"departures": departures, "airports": airports}, session=session)
    found = {(row.pop("_timestamp"), row.pop("_key"), json.dumps(row, sort_keys=True)) for row in rows}
    assert found == {d.update(*item) for item in d.totals(made).items()}


def test_mistakes_say_what_there_is(session: SparkSession) -> None:
    with pytest.raises(DoesNotExistError, match="no pipeline 'revenues'; it has revenue, dear"):
        run_pipeline(shop(), "revenues", {}, session=session)
    with pytest.raises(DoesNotExistError, match="does not read 'order'; it reads orders, names"):
        run_pipeline(shop(), "revenue", {"order": []}, session=session)
    with pytest.raises(InvalidArgumentError, match="'orders' has keys of type string"):
        run_pipeline(shop(), "revenue", {"orders": [Record(1, {})]}, session=session)
    with pytest.raises(CallerError, match=r"orders-0 offset 0 is not JSON of the topic's schema"):
        run_pipeline(shop(), "revenue", {"orders": [Record("a", {"city": "Bath", "amount": "much"})]}, session=session)


def test_rows_of_sessions_have_keys_of_their_own(session: SparkSession) -> None:
    given = [("JFK", 0), ("JFK", 4), ("JFK", 60)]  # minutes: the first two are less than ten minutes apart
    departures = [
        Record(origin, {"origin": origin, "at": d.iso(START + at * MINUTE), "delay": 0.0}) for origin, at in given
    ]
    rows = run_pipeline(windowed.app, "bursts", {"departures": departures}, session=session)
    assert {row["_key"]: row["flights"] for row in rows} == {
        SessionKey("JFK", START, START + 4 * MINUTE): 2,
        SessionKey("JFK", START + 60 * MINUTE, START + 60 * MINUTE): 1,
    }


@long_only("test_timed.py runs the document's pipelines, and the test above has the keys of sessions")
def test_sessions_of_the_document_have_keys_of_their_own(session: SparkSession) -> None:
    scope: dict[str, Any] = {}
    exec(blocks(document("docs/operators.md"), "python")[0], scope)
    given = [(0, 3), (4, 5), (60, 7)]  # minutes, amounts: the first two are five minutes apart at most
    orders = [Record("c", {"city": "Bath", "amount": amount}, START + at * MINUTE) for at, amount in given]
    rows = run_pipeline(scope["app"], "visits", {"orders": orders}, session=session)
    found = {row["_key"]: (row["orders"], row["total"]) for row in rows}
    assert found == {
        SessionKey("c", START, START + 4 * MINUTE): (2, 8),
        SessionKey("c", START + 60 * MINUTE, START + 60 * MINUTE): (1, 7),
    }


def test_the_test_that_the_document_shows_passes_in_the_session_that_is_there(session: SparkSession) -> None:
    scope: dict[str, Any] = {}
    exec(blocks(document("docs/testing.md"), "python")[2], scope)
    scope["test_revenue_is_summed_by_city"]()
