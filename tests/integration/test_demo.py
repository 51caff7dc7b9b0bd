"""`stateline demo --once`, as a newcomer runs it: it ends by itself, and every answer it checked was right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile

import pandas as pd  # type: ignore[import-untyped]  # its types would be one more package
import pytest

from stateline.demo.data import data_directory
from support.processes.ports import free_port

_PARTS = (
    "The same key at both isolation levels, while departures stream in",
    "A write, and a read that waits for it",
    "isolation_level=read_uncommitted",
    "position_bound=",
    "/v1/stores/delay_windows/keys/JFK/windows",
    "/v1/stores/aircraft_days/keys/N725MQ/sessions",
    "/v1/stores/weather_as_of/keys/LGA",
)
_LEAST_FLIGHTS, _PLACES = 100, 20
_PLACE = re.compile(r"^ +\d+\. (\w{3}) (\w{2})  ([ \d.]+) min, +([\d,]+) flights, +([\d,]+) min in all", re.MULTILINE)

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer, and there is no java here."),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo printed; it ended with 0."""
    directory = tmp_path_factory.mktemp("newcomer")
    command = [sys.executable, "-m", "stateline", "demo", "--once", "--port", str(free_port())]
    command += ["--state-dir", str(directory / "demo")]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=580)
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    return text


def test_the_demo_checks_every_store_against_the_csv_files_and_finds_every_answer_right(said: str) -> None:
    verdict = re.search(r"checked ([\d,]+) answers, all right", said)
    assert verdict, said
    # 4,000 aircraft and their timestamps, 110,000 hours and 31,000 rows of tables, most of them asked for twice; then
    # 18,000 windows, 56,000 sessions and 26,000 versions.
    assert int(verdict[1].replace(",", "")) > 350_000
    for part in _PARTS:
        assert part in said
    assert "Traceback" not in said


def test_the_ranking_of_the_spark_job_is_that_of_pandas_over_the_csv_files(said: str) -> None:
    departures = re.search(r"Checking against the CSV files: ([\d,]+) departures", said)
    assert departures, said
    expected = _ranking_by_pandas(int(departures[1].replace(",", "")))
    found = [
        (airport, carrier, mean.strip(), int(flights.replace(",", "")), int(minutes.replace(",", "")))
        for airport, carrier, mean, flights, minutes in _PLACE.findall(said)
    ]
    assert len(found) == _PLACES
    assert found == expected


def _ranking_by_pandas(departures: int) -> list[tuple[str, str, str, int, int]]:
    """Airport, airline, mean as printed, flights that left and minutes, after so many departures of the year."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = pd.read_csv(file)
    flights["scheduled"] = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(flights["minute"], unit="min")
    first = flights.sort_values("scheduled", kind="stable").head(departures)
    pairs = first.groupby(["origin", "carrier"])["dep_delay"].agg(["mean", "count", "sum"]).reset_index()
    many = pairs[pairs["count"] >= _LEAST_FLIGHTS]
    worst = many.sort_values(["mean", "origin", "carrier"], ascending=[False, True, True]).head(_PLACES)
    return [
        (row.origin, row.carrier, f"{row.mean:.2f}", int(row.count), int(row.sum))
        for row in worst.itertuples(index=False, name="Pair")
    ]
