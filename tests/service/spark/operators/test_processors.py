"""What processors give for any changes in any micro-batches, against plain Python. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from stateline.spark.operators.groups import GroupTotals, PreviousGroups, Sum, rounded
from stateline.spark.operators.joins import LEFT, RIGHT, JoinStreamWithTable, JoinTables
from stateline.spark.operators.sessions import Sessions
from stateline_store import RecordError

KEYS = ("a", "b")
SUM = Sum(("n",)), Sum(("n",), -1)
GAP_US = 10_000
Change = tuple[str, str | None, int | None]  # key, group, number; without a number the key is deleted
changes_of_a_table = st.tuples(st.sampled_from(KEYS), st.sampled_from(["x", "y", None]), st.none() | st.integers(-5, 5))
batches_of = st.builds(
    lambda items, cuts: [items[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(items)], strict=True)],
    st.lists(changes_of_a_table, max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
)


def text(number: float | None) -> str | None:
    return None if number is None else json.dumps({"n": number})


def given_to(table: TwsTester, rows: Sequence[Row]) -> list[Row]:
    """What a table's processor gives for these rows, in reverse: it must put them in order itself. All keys of tests
    are in one bucket."""
    return table.test(0, [Row(row=json.dumps(row.asDict())) for row in reversed(rows)])


@given(batches=batches_of)
def test_totals_of_groups_follow_rows_that_change_move_and_vanish(batches: list[list[Change]]) -> None:
    moves, totals = TwsTester(PreviousGroups()), TwsTester(GroupTotals({"n": 0}, Sum(("n",)), Sum(("n",), -1)))
    members: dict[str, tuple[str, int]] = {}
    seen: dict[str, str] = {}
    order = 0
    for batch in batches:
        rows = []
        for key, group, number in batch:
            order += 1
            grouped = group if number is not None else None
            rows.append(Row(key=key, group=grouped, value=text(number), at=order, order=order))
            members.pop(key, None)
            if grouped is not None and number is not None:
                members[key] = (grouped, number)
        for row in given_to(totals, given_to(moves, rows)):
            seen.pop(row.group, None)
            if row.value is not None:
                seen[row.group] = row.value
        expected = {name: sum(n for g, n in members.values() if g == name) for name, _ in members.values()}
        assert {group: json.loads(value)["n"] for group, value in seen.items()} == expected


@given(batches=batches_of, how=st.sampled_from(["inner", "left", "outer"]))
def test_a_join_of_tables_is_the_join_of_their_newest_rows(
    batches: list[list[Change]], how: Literal["inner", "left", "outer"]
) -> None:
    join = TwsTester(JoinTables(how))
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    seen: dict[str, tuple[str | None, str | None]] = {}
    order = 0
    for batch in batches:
        rows = []
        for key, group, number in batch:
            order += 1
            side = LEFT if group == "x" else RIGHT
            rows.append(Row(key=key, side=side, value=text(number), at=order, order=order))
            sides[side].pop(key, None)
            if number is not None:
                sides[side][key] = number
        for row in given_to(join, rows):
            assert row.deleted <= (row.key in seen)  # a tombstone only for what was there
            seen.pop(row.key, None)
            if not row.deleted:
                seen[row.key] = (row.left, row.right)
        wanted = {
            "inner": sides[0].keys() & sides[1].keys(),
            "left": sides[0].keys(),
            "outer": sides[0].keys() | sides[1].keys(),
        }[how]
        assert seen == {key: (text(sides[0].get(key)), text(sides[1].get(key))) for key in wanted}


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
    def add(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        return {"n": total["n"] + value["n"]}

    sessions = TwsTester(
        Sessions(GAP_US, {"n": 0}, add, add), timeMode="EventTime", eventTimeExtractor=lambda row: row.at // 1000 + 1
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
        Sessions(GAP_US, {"n": 0}, Sum(("n",)), Sum(("n",))), timeMode="EventTime", eventTimeExtractor=lambda row: 1
    )
    for order, at in enumerate(times):
        out = sessions.test("k", [Row(key="k", value=text(at), at=at * 1000, order=order)])
    assert [(row.start, row.last) for row in out if row.value is not None] == [(0, 20_000)]


def summed(*moves: tuple[int, float], state: TwsTester | None = None) -> list[float | None]:
    """What leaves a group for each of these moves (sign, number)."""
    totals = state or TwsTester(GroupTotals({"n": 0 if isinstance(moves[0][1], int) else 0.0}, *SUM, rounded))
    out = [row.value for sign, n in moves for row in given_to(totals, [Row(group="g", sign=sign, value=text(n), at=1)])]
    return [None if value is None else json.loads(value)["n"] for value in out]


def test_a_large_double_that_leaves_a_sum_leaves_nothing_behind() -> None:
    assert summed((1, 0.1), (1, 0.2), (1, 1e16), (-1, 1e16)) == [0.1, 0.30000000000000004, 1e16, 0.30000000000000004]
    assert summed((1, 1.7e308), (1, -1.7e308), (1, 5e-324), (-1, 1.7e308))[-1:] == [-1.7e308]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=8), st.randoms())
def test_a_sum_of_doubles_is_rounded_once_whatever_came_and_left(numbers: list[float], chance: Any) -> None:
    numbers = [number / 16 for number in numbers]  # of eight the sum is a double
    left = [number for number in numbers if chance.random() < 0.5]
    expected = float(sum(map(Fraction, numbers)) - sum(map(Fraction, left[:-1])))
    assert summed(*((1, number) for number in numbers), *((-1, number) for number in left[:-1]))[-1] == expected


def test_a_sum_that_no_bigint_or_double_holds_names_group_and_value() -> None:
    most = 2**63 - 1
    assert summed((1, most), (-1, most), (1, -most - 1)) == [most, None, -most - 1]
    with pytest.raises(
        RecordError, match=r"of 'n' in the group g is 9223372036854775808, .* BIGINT .*: start over .* cast to double"
    ):
        summed((1, most), (1, 1))
    with pytest.raises(RecordError, match=r"of 'n' in the group g is .*3\.40e\+308, .* DOUBLE .*: start over .*filter"):
        summed((1, 1.7e308), (1, 1.7e308))
    totals = TwsTester(GroupTotals({"n": 0}, *SUM, rounded))
    rows = [Row(group="g", sign=1, value=text(n), at=at) for at, n in enumerate((most, 5, -6))]
    assert [json.loads(row.value)["n"] for row in given_to(totals, rows)] == [most - 1]  # exact in between


@pytest.mark.parametrize("processor", [PreviousGroups(), JoinTables("outer")])
def test_two_changes_of_one_key_that_nothing_tells_apart_are_refused_and_named(processor: Any) -> None:
    def change(number: int, side: int = LEFT, order: int = 0) -> Row:
        place = {"side": side} if isinstance(processor, JoinTables) else {"group": "x"}
        return Row(key="k", **place, value=text(number), at=1, order=order)

    table = TwsTester(processor)
    given_to(table, [change(1), change(1), change(2, order=1)])  # the same twice, and a newer one
    if isinstance(processor, JoinTables):
        given_to(table, [change(1), change(2, RIGHT)])
    with pytest.raises(RecordError, match=r"two rows .* key k, .*_order"):
        given_to(table, [change(1), change(2), change(0, order=-1)])


def test_a_change_that_changes_nothing_moves_nothing() -> None:
    moves = TwsTester(PreviousGroups())
    rows = [Row(key="k", group="x", value=text(1), at=at, order=at) for at in (1, 2)]
    assert [row.sign for row in given_to(moves, rows[:1])] == [1]
    assert given_to(moves, rows[1:]) == []


def test_a_group_whose_aggregate_is_none_is_deleted_and_begins_anew_with_the_next_value() -> None:
    def capped(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any] | None:
        return {"n": total["n"] + value["n"]} if total["n"] + value["n"] < 10 else None

    totals = TwsTester(GroupTotals({"n": 0}, capped, Sum(("n",), -1)))

    def after(*moves: tuple[int, int]) -> list[str | None]:
        return [row.value for row in given_to(totals, [Row(group="g", sign=s, value=text(n), at=1) for s, n in moves])]

    assert after((1, 4), (1, 5)) == ['{"n":9}']
    assert after((1, 3)) == [None]
    assert after((-1, 4)) == []  # nothing is there that it could be taken out of
    assert after((-1, 5), (1, 2)) == ['{"n":2}']
    assert after((-1, 3), (-1, 2)) == [None]
    assert totals.peekMapState("states", 0) == {}


def test_a_session_whose_aggregate_is_none_is_deleted_and_the_next_row_begins_another() -> None:
    def until_zero(total: dict[str, Any], value: dict[str, Any]) -> dict[str, Any] | None:
        return {"n": total["n"] + value["n"]} if value["n"] else None

    sessions = TwsTester(
        Sessions(GAP_US, {"n": 0}, until_zero, Sum(("n",))), timeMode="EventTime", eventTimeExtractor=lambda row: 1
    )

    def after(*rows: tuple[int, int]) -> list[tuple[int, int, str | None]]:
        given = [Row(key="k", value=text(n), at=at * 1000, order=0) for at, n in rows]
        return [(row.start // 1000, row.last // 1000, row.value) for row in sessions.test("k", given)]

    assert after((0, 1), (4, 2)) == [(0, 4, '{"n":3}')]
    assert after((5, 0)) == [(0, 4, None)]
    assert sessions.peekValueState("sessions", "k") is None
    assert after((6, 0)) == []
    assert after((7, 0), (8, 5)) == [(8, 8, '{"n":5}')]
