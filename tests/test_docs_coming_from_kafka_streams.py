"""docs/coming-from-kafka-streams.md is true: its topologies do what they do in Java, and it names every method."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stateline import App
from stateline.dsl.cogrouped import CogroupedStream, CogroupedWindows
from stateline.dsl.grouped_tables import GroupedTable
from stateline.dsl.streams import (
    FinalResults,
    GroupedStream,
    Stream,
    SuppressedTable,
    Table,
    WindowedStream,
    WindowedTable,
)
from stateline.testing import TestDriver
from test_docs import blocks, document

TEXT = document("docs/coming-from-kafka-streams.md")


def declared(name: str) -> App:
    """The application of this name, of the block that declares it."""
    (code,) = (block for block in blocks(TEXT, "python") if f'App("{name}")' in block)
    scope: dict[str, Any] = {}
    exec(code, scope)
    (app,) = (each for each in scope.values() if isinstance(each, App))
    return app


def test_orders_meet_the_payments_within_ten_minutes() -> None:
    with TestDriver(declared("paid-orders")) as driver:
        driver.pipe("orders", "o1", {"item": "tea"}, timestamp_ms=0)
        driver.pipe("payments", "o1", {"amount": 3}, timestamp_ms=600_000)
        driver.pipe("payments", "o1", {"amount": 4}, timestamp_ms=600_001)
        driver.pipe("payments", "o2", {"amount": 9}, timestamp_ms=600_001)
        found = [(row.key, row.value, row.timestamp_ms) for row in driver.read("paid-orders")]
        assert found == [("o1", {"item": "tea", "paid": 3}, 600_000)]


def test_a_song_leaves_its_old_genre_and_a_sixth_song_follows() -> None:
    with TestDriver(declared("charts")) as driver:
        for number in range(6):
            driver.pipe("songs", f"s{number}", {"genre": "jazz", "title": f"t{number}", "plays": number})
        driver.pipe("songs", "s5", {"genre": "pop", "title": "t5", "plays": 5})
        newest = {row.key: row.value for row in driver.read("charts")}
        assert newest == {"jazz": [[n, f"t{n}"] for n in (4, 3, 2, 1, 0)], "pop": [[5, "t5"]]}


def test_a_row_goes_to_its_first_branch_only() -> None:
    with TestDriver(declared("branches")) as driver:
        for amount, country in ((1000, "FR"), (1, "FR"), (1, "GB")):
            driver.pipe("orders", "c", {"amount": amount, "country": country})
        rows = {name: [row.value for row in driver.read(name)] for name in ("large", "small-abroad", "small-at-home")}
        assert rows == {
            "large": [{"amount": 1000, "country": "FR"}],
            "small-abroad": [{"amount": 1, "country": "FR"}],
            "small-at-home": [{"amount": 1, "country": "GB"}],
        }


def test_orders_follow_the_names_of_their_customers() -> None:
    with TestDriver(declared("named-orders")) as driver:
        driver.pipe("orders", "4711", {"customer": "c1"})
        driver.pipe("customers", "c1", {"name": "Ada"})
        assert driver.store("named-orders").get("4711") == {"customer": "c1", "name": "Ada"}
        driver.pipe("customers", "c1", {"name": "Bob"})
        assert driver.store("named-orders").get("4711") == {"customer": "c1", "name": "Bob"}
        driver.pipe("customers", "c1", None)
        assert driver.store("named-orders").get("4711") is None


CODE = re.findall(r"`([^`\n]+)`", TEXT)


def test_every_method_of_streams_groups_and_tables_is_named() -> None:
    kinds = (
        Stream, GroupedStream, WindowedStream, WindowedTable, FinalResults, Table, SuppressedTable, GroupedTable,
        CogroupedStream, CogroupedWindows,
    )  # fmt: skip
    methods = {name for kind in kinds for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}
    assert methods <= set(re.findall(r"[a-z_]+", " ".join(CODE)))


# `javap` of kafka-streams 4.4.0, without serdes, getters and deprecated methods.
JAVA = {
    "StreamsBuilder": "stream table globalTable addStateStore addGlobalStore build",
    "KStream": "filter filterNot selectKey mapValues map flatMapValues flatMap print foreach peek split merge "
    "repartition to toTable groupByKey groupBy join leftJoin outerJoin process processValues",
    "BranchedKStream": "branch defaultBranch noDefaultBranch",
    "KTable": "filter filterNot mapValues toStream suppress transformValues groupBy join leftJoin outerJoin "
    "queryableStoreName",
    "KGroupedStream": "count reduce aggregate windowedBy cogroup",
    "KGroupedTable": "count reduce aggregate",
    "CogroupedKStream": "cogroup aggregate windowedBy",
    "TimeWindowedKStream": "count reduce aggregate emitStrategy",
    "SessionWindowedKStream": "count reduce aggregate emitStrategy",
    "GlobalKTable": "queryableStoreName",
    "Materialized": "as withKeySerde withValueSerde withLoggingEnabled withLoggingDisabled withCachingEnabled "
    "withCachingDisabled withRetention withStoreType",
    "StreamJoined": "as withStoreName withThisStoreSupplier withOtherStoreSupplier withDslStoreSuppliers",
    "Joined": "as withGracePeriod",
    "TableJoined": "as withPartitioner withOtherPartitioner",
    "Consumed": "as withTimestampExtractor withOffsetResetPolicy",
    "Produced": "as withStreamPartitioner",
    "Repartitioned": "as withStreamPartitioner withNumberOfPartitions",
    "Grouped": "as",
    "Branched": "as",
    "Printed": "withName",
    "Suppressed": "untilTimeLimit untilWindowCloses withName maxRecords maxBytes unbounded shutDownWhenFull "
    "emitEarlyWhenFull",
    "EmitStrategy": "onWindowClose onWindowUpdate",
}


@pytest.mark.parametrize("name", JAVA)
def test_every_method_of_the_dsl_in_java_is_named(name: str) -> None:
    words = set(re.findall(r"\w+", " ".join(CODE)))
    assert {name, *JAVA[name].split()} <= words
