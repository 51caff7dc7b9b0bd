"""Values of SQL in JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import duckdb
import pytest

from stateline.server.contract.formats import CSV, JSON
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
