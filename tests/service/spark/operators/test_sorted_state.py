"""Entries in order, in leaves of a few, against a list in plain Python. Without Spark, but for one query."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester

from service.spark.operators.bench import OperatorBench, declare
from stateline import serdes
from stateline.dsl.app import App
from stateline.spark.operators import sorted_state, state_requests
from stateline.spark.operators.processors import StateProcessor, by_event_time
from stateline.spark.operators.sorted_state import SortedEntries, SortedState
from stateline_store import ConfigurationError
from support.run.length import long_or_short

Step = tuple[str, int]
ENTRIES, BATCHES = long_or_short((3000, 7), (600, 2))  # in leaves of 128
steps = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "remove", "first"]), st.integers(0, 60)), max_size=40)


def changed(entries: SortedEntries, expected: list[tuple[int, int, str]], step: Step, order: int) -> None:
    """Do one step to both."""
    what, at = step
    if what == "put":
        entries.put((at, order, str(order)))
        expected.append((at, order, str(order)))
        expected.sort()
    elif what == "first" and expected:
        assert entries.remove_first() == expected.pop(0)
    elif what == "remove" and expected:
        gone = expected.pop(at % len(expected))
        assert entries.remove(gone[:2]) == gone


class Steps(StateProcessor):
    """Does the steps that rows tell, and gives for each row what is found up to that number."""

    returns = "found string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = SortedState(handle, "numbers")

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        entries = self._state.entries()
        for row in sorted(rows, key=lambda row: row.order):
            if row.what == "put":
                entries.put((row.at, row.order, "x" * row.length))
            else:
                while entries.first and entries.first[0] < row.at:
                    entries.remove_first()
            found = entries.up_to(row.at)
            yield Row(found=f"{entries.first} {found[:2] if found else None} {len(found[2] or '') if found else 0}")
        entries.save()


@given(batches=st.lists(steps, max_size=4))
@settings(max_examples=200)
def test_entries_are_found_in_order_whatever_was_put_and_removed_in_which_micro_batch(
    batches: list[list[Step]],
) -> None:
    sorted_state.LEAF, kept = 3, sorted_state.LEAF
    try:
        tester = TwsTester(Steps())
        tester.handle.setGroupingKey("k")
        state = SortedState(tester.handle, "of")
        expected: list[tuple[int, int, str]] = []
        order = 0
        for batch in batches:
            entries = state.entries()
            for step in batch:
                order += 1
                changed(entries, expected, step, order)
                assert entries.first == (expected[0][:2] if expected else None)
            assert entries.second == (expected[1][:2] if len(expected) > 1 else None)
            for at in range(-1, 61):
                before = [each for each in expected if each[0] <= at]
                assert entries.up_to(at) == (before[-1] if before else None)
            entries.save()
        if not expected:
            assert state.root.get() is None
            assert list(state.leaves.keys()) == []
    finally:
        sorted_state.LEAF = kept


def test_many_entries_stay_in_sparks_state_in_order_long_ones_too(bench: OperatorBench) -> None:
    app = App("operators")
    topic = app.topic("steps", key=serdes.string, value=serdes.json, schema="what string, at bigint, length int")

    @declare(app, reads=topic, key="_key")
    def stepped(steps: Any) -> Any:
        rows = steps.withWatermark("_timestamp", "1 hour").withColumn("order", F.col("_offset"))
        return by_event_time(rows, "_key", Steps())

    puts: list[dict[str, Any]] = [
        {"what": "put", "at": (7919 * n) % ENTRIES, "length": 100_000 if n == 50 else n} for n in range(ENTRIES)
    ]
    ends = [{"what": "drop", "at": at, "length": 0} for at in (ENTRIES - 10, ENTRIES)]
    bench.write("steps", [("k", value, 1_000_000) for value in (*puts, *ends)], partitions=1)
    found = [
        row["found"]
        for row in bench.run(*app.topology().pipelines.values(), rows_per_batch=ENTRIES // BATCHES + 1)["stepped"]
    ]
    lengths = {(put["at"], n): put["length"] for n, put in enumerate(puts)}
    before: list[tuple[int, int]] = []
    for n, put in enumerate(puts):
        before = sorted([*before, (put["at"], n)])
        assert found[n] == f"{before[0]} {(put['at'], n)} {lengths[put['at'], n]}"
    left = [place for place in before if place[0] >= ENTRIES - 10]
    assert found[ENTRIES:] == [f"{left[0]} {left[0]} {lengths[left[0]]}", "None None 0"]


@pytest.mark.parametrize("count", [1, 128, 129, 1000])
def test_few_entries_are_one_row_of_state_and_many_are_leaves(count: int) -> None:
    tester = TwsTester(Steps())
    tester.test("k", [Row(what="put", at=n, order=n, length=1) for n in range(count)])
    leaves = tester.peekMapState("numbers_leaves", "k")
    assert len(leaves) == (0 if count <= 128 else -(-count // 128))
    assert all(len(entries) <= 128 for entries, *_ in leaves.values())


def test_a_spark_whose_messages_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(ConfigurationError, match=r"PySpark 4\.3\.0 is installed, and operators with state need 4\.2:"):
        importlib.reload(state_requests)
