"""Tables and aggregates of streams whose store was given no name, and the settings of their changelogs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes
from stateline.dsl.streams import Table, WindowedTable
from stateline.testing import Record, TestDriver
from stateline_store import InvalidArgumentError

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def both(one: str | None, other: str | None) -> str:
    return f"{one}{other}"


def of_each_operator(app: App, **terms: Any) -> list[Table | WindowedTable]:
    rows = app.stream("in", **TEXTS)
    grouped, table = rows.group_by_key(), rows.to_table(**terms)
    minutes = grouped.windowed_by(TumblingWindows(timedelta(minutes=1)))
    return [
        table,
        grouped.count(**terms),
        grouped.reduce(both, **terms),
        grouped.aggregate(str, lambda key, value, all_: all_ + value, value=serdes.string, **terms),
        table.filter(lambda key, value: value != "x", **terms),
        table.filter_not(lambda key, value: value == "x", **terms),
        table.map_values(lambda key, value: value.upper(), **terms),
        table.join(app.ktable(app.table("other", **TEXTS)), both, **terms),
        minutes.count(**terms),
        minutes.reduce(both, **terms),
        grouped.windowed_by(SessionWindows(timedelta(minutes=1))).count(**terms),
    ]


def test_each_store_without_a_name_has_kafka_streams_with_a_number_in_the_order_of_declaration() -> None:
    assert [table.store.name for table in of_each_operator(App("unnamed"))] == [
        "KSTREAM-TOTABLE-STATE-STORE-0000000000",
        "KSTREAM-AGGREGATE-STATE-STORE-0000000001",
        "KSTREAM-REDUCE-STATE-STORE-0000000002",
        "KSTREAM-AGGREGATE-STATE-STORE-0000000003",
        "KTABLE-FILTER-STATE-STORE-0000000004",
        "KTABLE-FILTER-STATE-STORE-0000000005",
        "KTABLE-MAPVALUES-STATE-STORE-0000000006",
        "KTABLE-MERGE-STATE-STORE-0000000007",
        "KSTREAM-AGGREGATE-STATE-STORE-0000000008",
        "KSTREAM-REDUCE-STATE-STORE-0000000009",
        "KSTREAM-AGGREGATE-STATE-STORE-0000000010",
    ]


def test_other_steps_and_stores_with_a_name_do_not_count() -> None:
    rows = App("unnamed").stream("in", **TEXTS)
    rows.filter(lambda key, value: True).group_by_key().count("named")
    assert rows.peek(lambda key, value: None).to_table().store.name == "KSTREAM-TOTABLE-STATE-STORE-0000000000"


def test_every_such_table_takes_settings_of_its_changelog() -> None:
    for table in of_each_operator(App("unnamed"), changelog={"segment.ms": 60_000}):
        assert table.store.changelog_settings()["segment.ms"] == "60000"
        assert table.store.is_operators
    with pytest.raises(InvalidArgumentError, match=r"Store 'counts': changelog setting 'segment\.ms'"):
        App("x").stream("in", **TEXTS).group_by_key().count("counts", changelog={"segment.ms": None})


def test_tables_without_a_name_hold_what_those_with_one_do_and_are_served_as_they_are() -> None:
    app = App("unnamed")
    rows = app.stream("in", **TEXTS)
    newest = rows.to_table().filter(lambda key, value: value != "x").map_values(lambda key, value: value.upper())
    newest.to_stream().to(app.topic("out", **TEXTS))
    counts = rows.group_by_key().count()
    given = [("a", "one"), ("b", "x"), ("a", "two"), ("c", "three"), ("c", "x")]
    with TestDriver(app) as driver:
        driver.pipe_all("in", [Record(key, value) for key, value in given])
        assert {entry.key: entry.value for entry in driver.store(newest.store.name).all()} == {"a": "TWO"}
        assert {entry.key: entry.value for entry in driver.store(counts.store.name).all()} == {"a": 2, "b": 1, "c": 2}
        answer = driver.client.get(
            f"/v1/stores/{counts.store.name}/keys/c", params={"isolation_level": "read_committed"}
        )
        assert (answer.status_code, answer.json()["value"]) == (200, 2)
        driver.crash()
        assert driver.store(counts.store.name).get("c") == 2
