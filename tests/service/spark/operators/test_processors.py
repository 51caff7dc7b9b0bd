"""What processors give for any changes in any micro-batches, against plain Python. Without Spark."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from stateline.spark.operators.joins import LEFT, RIGHT, JoinStreamWithTable
from stateline.spark.operators.sessions import Sessions

GAP_US = 10_000


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"n": one["n"] + other["n"]}


def text(number: float | None) -> str | None:
    return None if number is None else json.dumps({"n": number})


Event = tuple[Literal["stream", "table"], int, int | None]  # time in milliseconds, number
events = st.lists(
    st.tuples(st.sampled_from(["stream", "table"]), st.integers(1, 30), st.none() | st.integers(0, 3)), max_size=12
)


@given(first=events, second=events, watermarks=st.lists(st.integers(1, 40), min_size=2, max_size=2, unique=True))
def test_a_stream_joins_the_table_as_of_each_rows_time_whatever_comes_when(
    first: list[Event], second: list[Event], watermarks: list[int]
) -> None:
    join = TwsTester(JoinStreamWithTable("left"), timeMode="EventTime", eventTimeExtractor=lambda row: 1 << 60)
    early, late = sorted(watermarks)
    second = [(side, at + early, number) for side, at, number in second]  # nothing is older than the watermark
    rows = [
        Row(key="k", side=LEFT if side == "stream" else RIGHT, value=f"{side} {order}" if side == "stream" else text(n),
            at=at * 1000, order=order)
        for order, (side, at, n) in enumerate([*first, *second])
    ]  # fmt: skip
    out = join.test("k", rows[: len(first)]) if first else []
    out += join.setWatermark(early)
    out += join.test("k", rows[len(first) :][::-1]) if second else []
    out += join.setWatermark(early + late)
    out += join.setWatermark(1000)
    versions = sorted((row.at, row.order, row.value) for row in rows if row.side == RIGHT)
    expected = {}
    for row in rows:
        if row.side == LEFT:
            expected[row.value] = next((value for at, _, value in reversed(versions) if at <= row.at), None)
    assert {row.left: row.right for row in out} == expected
    assert len(out) == len(expected)
    join.test("k", [Row(key="k", side=RIGHT, value=None, at=900_000, order=99)])
    assert join.peekValueState("versions", "k") is None  # older versions are forgotten, and so is a key without a value


def test_rows_and_changes_of_one_time_and_order_all_count() -> None:
    """As offsets of several partitions may be, and rows without any order; a change may be a deletion."""
    join = TwsTester(JoinStreamWithTable("left"), timeMode="EventTime", eventTimeExtractor=lambda row: 1 << 60)
    of_table = [Row(key="k", side=RIGHT, value=value, at=1000, order=0) for value in (None, text(1))]
    of_stream = [Row(key="k", side=LEFT, value=value, at=2000, order=0) for value in ("a", "b", "a")]
    out = join.test("k", [*of_table, *of_stream]) + join.setWatermark(1000)
    assert [(row.left, row.right) for row in out] == [("a", text(1)), ("b", text(1)), ("a", text(1))]


@given(
    times=st.lists(st.integers(0, 120), max_size=15), cuts=st.lists(st.integers(0, 15), max_size=3), chance=st.randoms()
)
def test_sessions_that_grow_and_merge_end_as_those_of_all_rows_at_once(
    times: list[int], cuts: list[int], chance: Any
) -> None:
    sessions = TwsTester(
        Sessions(GAP_US, {"n": 0}, added, added),
        timeMode="EventTime",
        eventTimeExtractor=lambda row: row.at // 1000 + 1,
    )
    chance.shuffle(times)
    rows = [Row(key="k", value=text(at), at=at * 1000, order=order) for order, at in enumerate(times)]
    seen: dict[tuple[int, int], str] = {}
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        if rows[begin:end]:
            for row in sessions.test("k", rows[begin:end][::-1]):
                assert row.value is not None or (row.start, row.last) in seen
                seen.pop((row.start, row.last), None)
                if row.value is not None:
                    seen[(row.start, row.last)] = row.value
    expected: list[list[int]] = []
    for at in sorted(times):
        if expected and (at - expected[-1][-1]) * 1000 <= GAP_US:
            expected[-1].append(at)
        else:
            expected.append([at])
    assert seen == {(s[0] * 1000, s[-1] * 1000): json.dumps({"n": sum(s)}).replace(" ", "") for s in expected}
    sessions.setWatermark(10_000)
    assert sessions.peekValueState("sessions", "k") is None


@pytest.mark.parametrize("times", [[0, 10, 20], [20, 10, 0], [0, 20, 10]])
def test_rows_exactly_the_gap_apart_are_one_session(times: list[int]) -> None:
    sessions = TwsTester(
        Sessions(GAP_US, {"n": 0}, added, added), timeMode="EventTime", eventTimeExtractor=lambda row: 1
    )
    for order, at in enumerate(times):
        out = sessions.test("k", [Row(key="k", value=text(at), at=at * 1000, order=order)])
    assert [(row.start, row.last) for row in out if row.value is not None] == [(0, 20_000)]


def test_a_session_whose_aggregate_is_none_is_deleted_and_the_next_row_begins_another() -> None:
    def until_zero(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any] | None:
        return {"n": total["n"] + value["n"]} if value["n"] else None

    sessions = TwsTester(
        Sessions(GAP_US, {"n": 0}, until_zero, added), timeMode="EventTime", eventTimeExtractor=lambda row: 1
    )

    def after(*rows: tuple[int, int]) -> list[tuple[int, int, str | None]]:
        given = [Row(key="k", value=text(n), at=at * 1000, order=0) for at, n in rows]
        return [(row.start // 1000, row.last // 1000, row.value) for row in sessions.test("k", given)]

    assert after((0, 1), (4, 2)) == [(0, 4, '{"n":3}')]
    assert after((5, 0)) == [(0, 4, None)]
    assert sessions.peekValueState("sessions", "k") is None
    assert after((6, 0)) == []
    assert after((7, 0), (8, 5)) == [(8, 8, '{"n":5}')]
