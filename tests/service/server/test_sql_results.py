"""Values of SQL in JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import random
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from stateline.server.contract.formats import CSV, JSON, NDJSON
from stateline.server.sql.results import rendered


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("INTERVAL '14 months 3 hours 1.5 seconds'", "P1Y2MT3H1.5S"),
        ("INTERVAL '-14 months' - INTERVAL '0.25 seconds'", "P-1Y-2MT-0.25S"),
        ("INTERVAL '-1 day 90 seconds'", "P-1DT1M30S"),
        ("INTERVAL '100 hours'", "PT100H"),
        ("INTERVAL '0 days'", "PT0S"),
        ("[INTERVAL '1 day', NULL]", ["P1D", None]),
        ("MAP {'a': 1, 'b': NULL}", {"a": 1, "b": None}),
        ("MAP {1: 'a'}", [[1, "a"]]),
        ("MAP {'a': MAP {'b': 170141183460469231731687303715884105727::HUGEINT}}", {"a": {"b": 2**127 - 1}}),
        ("{'of': [MAP {'a': INTERVAL '1 hour'}]}", {"of": [{"a": "PT1H"}]}),
        ("MAP {'a': 1.50::DECIMAL(4, 2)}", {"a": 1.5}),
        ("NULL::MAP(VARCHAR, INT)", None),
    ],
)
def test_intervals_are_durations_and_maps_are_objects(value: str, shown: Any) -> None:
    table = duckdb.connect().execute(f"SELECT {value} AS v").to_arrow_table()
    assert json.loads(rendered(table, JSON, None)) == [{"v": shown}]
    (_, (cell,)) = csv.reader(io.StringIO(rendered(table, CSV, None).decode() or "\n"))
    assert cell == ("" if shown is None else shown if isinstance(shown, str) else cell)
    if isinstance(shown, dict | list):
        assert json.loads(cell) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("'9999-12-31 23:59:59Z'::TIMESTAMPTZ", "9999-12-31T23:59:59+00:00"),
        ("'10000-01-01 00:00:00.5Z'::TIMESTAMPTZ", "+10000-01-01T00:00:00.500000+00:00"),
        ("'40000-02-29 01:02:03Z'::TIMESTAMPTZ", "+40000-02-29T01:02:03+00:00"),
        ("make_timestamptz(9223372036854775)", "2262-04-11T23:47:16.854775+00:00"),
        ("make_timestamptz(9223372036854775000)", "+294247-01-10T04:00:54.775000+00:00"),
        ("'100000-01-01'::DATE", "+100000-01-01"),
        ("'0044-03-15 (BC)'::DATE", "-0043-03-15"),
        ("make_timestamp(-62135600400000000)", "+0000-12-31T23:00:00"),
        ("'infinity'::TIMESTAMPTZ", "infinity"),
    ],
)
def test_a_time_beyond_the_years_of_python_is_that_time(value: str, shown: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    table = connection.execute(f"SELECT {value} AS v").to_arrow_table()
    assert json.loads(rendered(table, JSON, None)) == [{"v": shown}]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_are_those_of_python(unit: str, zone: str | None) -> None:
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)
    chosen = random.Random(1)
    spread = [first + timedelta(microseconds=chosen.randrange((last - first) // timedelta(microseconds=1)))
              for _ in range(300)]  # fmt: skip
    near = [datetime(1970, 1, 1) + timedelta(microseconds=each) for each in (-1, 0, 1, 999_999, 10**6, 10**9 + 10**5)]
    step = timedelta(seconds=1) / {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    times = [first + (each - first) // step * step for each in (first, last, *near, *spread)]
    times = [each.replace(tzinfo=None if zone is None else UTC) for each in times]
    table = pa.table({"t": pa.array([*times, None], pa.timestamp(unit, zone))})
    shown = [json.loads(line)["t"] for line in rendered(table, NDJSON, None).splitlines()]
    assert shown == [*(each.isoformat() for each in times), None]
    cells = [cell for (cell,) in csv.reader(io.StringIO(rendered(table, CSV, None).decode()[:-2]))][1:]
    assert cells == [*(each.isoformat() for each in times), ""]


def test_cells_are_those_of_python() -> None:
    rows = [
        {
            "f": 1e300,
            "i": -(2**63),
            "b": True,
            "s": 'a, "b"',
            "d": date(1, 1, 1),
            "t": time(1, 2, 3, 400),
            "x": b"\xff",
        },
        {"f": float("nan"), "i": 0, "b": False, "s": "", "d": None, "t": None, "x": b""},
        dict.fromkeys("fibsdtx"),
        {"f": 0.1, "i": 7, "b": None, "s": "=1", "d": date(9999, 12, 31), "t": time(), "x": b"ab"},
    ]
    assert rendered(pa.Table.from_pylist(rows), CSV, None).decode().split("\r\n") == [
        "f,i,b,s,d,t,x",
        '1e+300,-9223372036854775808,true,"a, ""b""",0001-01-01,01:02:03.000400,_w',
        "nan,0,false,,,,",
        ",,,,,,",
        "0.1,7,,=1,9999-12-31,00:00:00,YWI",
        "",
    ]


def test_a_row_of_ndjson_is_one_line_whatever_is_stored() -> None:
    stored = '{\n "a": 1,\r\n "b": "\\n"\n}'
    schema = pa.schema([pa.field("v", pa.utf8(), metadata={"ARROW:extension:name": "arrow.json"})])
    lines = rendered(pa.table([[stored] * 2], schema=schema), NDJSON, None).decode().splitlines()
    assert [json.loads(line) for line in lines] == [{"v": {"a": 1, "b": "\n"}}] * 2
