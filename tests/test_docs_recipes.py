"""docs/sql-recipes.md is true: every request is asked of the demo's stores, over the demo's records of two days."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flights import data
from flights.application import app
from stateline.testing import Record, TestDriver
from support.oracles.sql_recipes import FIRST_MS, ROWS, Records, by_prefix, filled_hours, hour_ms, iso
from test_docs import document

PAGE = document("docs/sql-recipes.md")
DEPARTURES = 2_000
TABLES = ("airlines", "planes", "airports")


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each request of the page, with the heading above it."""
    for heading, text in re.findall(r"^## (.+)\n([^]*?)(?=^## |\Z)".replace("[^]", r"[\s\S]"), PAGE, re.MULTILINE):
        for language, block in re.findall(r"^```(sql|json)\n([\s\S]*?)^```", text, re.MULTILINE):
            yield heading, {"sql": block} if language == "sql" else json.loads(block)


REQUESTS = list(requests())


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(
        [(record.timestamp_ms, json.loads(record.value)) for record in data.departures()[:DEPARTURES]],
        table("airlines"),
        table("planes"),
        table("airports"),
        [(at, value) for at, value in weather() if value["month"] == 1 and value["day"] <= 2],
    )


def table(name: str) -> dict[str, dict[str, Any]]:
    return {record.key.decode(): json.loads(record.value) for record in data.table(name)}


def weather() -> Iterator[tuple[int, dict[str, Any]]]:
    return ((record.timestamp_ms, json.loads(record.value)) for record in data.table("weather"))


@pytest.fixture(scope="module")
def demo(records: Records) -> Iterator[httpx.Client]:
    """The demo's application, with what its pipelines would write."""
    sessions = (([tail, first, last], {"legs": legs}, last) for tail, first, last, legs in records.sessions)
    windows = (([airport, at], {"departures": count}, at) for (airport, at), count in records.windows.items())
    given: dict[str, Iterable[tuple[Any, Any, int]]] = {
        "departures": ((value["tailnum"] or data.UNKNOWN_AIRCRAFT, value, at) for at, value in records.departures),
        "weather": ((f"{value['origin']}|{at}", value, at) for at, value in records.weather),
        **{name: ((key, value, FIRST_MS) for key, value in getattr(records, name).items()) for name in TABLES},
        "delay_windows": windows,
        "aircraft_days": sessions,
        "delays": ((key, value, hour_ms(key)) for key, value in records.delays.items()),
    }
    with TestDriver(app, config={"sql.timeout.ms": 60_000}) as driver:
        for topic, rows_of_topic in given.items():
            driver.pipe_all(topic, [Record(*each) for each in rows_of_topic])
        yield driver.client


def rows(demo: httpx.Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    answer = demo.post("/v1/sql", json=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def of(heading: str) -> dict[str, Any]:
    return next(asked for each, asked in REQUESTS if each == heading)


@pytest.mark.parametrize("heading", ROWS)
def test_each_recipe_has_the_rows_of_its_records(demo: httpx.Client, records: Records, heading: str) -> None:
    found = [rows(demo, asked) for each, asked in REQUESTS if each == heading]
    expected = [rows_of(records) for rows_of in ROWS[heading]]
    assert found == expected
    assert all(expected)


def test_every_recipe_has_its_test() -> None:
    assert {heading for heading, _ in REQUESTS} == {*ROWS, "Age of the newest rows", "The newest row of each group"}


def test_the_page_has_the_recipes_that_dashboards_need() -> None:
    assert len({heading for heading, _ in REQUESTS}) >= 10


def test_the_records_have_what_the_recipes_are_for(records: Records) -> None:
    """Or rows would be equal for another reason."""
    assert 0 in [row["departures"] for row in filled_hours(records)]
    assert len({tail for tail, *_ in records.sessions[:20]}) < 20, "one has two of the longest sessions"


def test_the_age_is_the_time_since_the_rows(demo: httpx.Client, records: Records) -> None:
    begun_s = time.time()
    found = rows(demo, of("Age of the newest rows"))
    ended_s = time.time()
    newest = sorted(map(hour_ms, records.delays), reverse=True)[:10]
    assert [hour_ms(row["key"]) for row in found] == newest
    for row in found:
        assert begun_s - 1 <= row["age_s"] + hour_ms(row["key"]) / 1000 <= ended_s + 1  # it is rounded


def test_the_newest_row_of_a_group_is_one_of_its_newest(demo: httpx.Client, records: Records) -> None:
    newest: dict[str, tuple[str, set[str]]] = {}
    for tail, (at, value) in sorted(records.latest.items(), key=lambda each: each[1][0]):
        tails = newest[value["carrier"]][1] if newest.get(value["carrier"], ("",))[0] == iso(at) else set()
        newest[value["carrier"]] = iso(at), {*tails, tail}
    found = rows(demo, of("The newest row of each group"))
    assert [(row["carrier"], row["seen"]) for row in found] == sorted((key, at) for key, (at, _) in newest.items())
    assert all(row["tailnum"] in newest[row["carrier"]][1] for row in found)


def test_curl_writes_a_csv_file_and_none_for_an_error(demo: httpx.Client, records: Records, tmp_path: Path) -> None:
    command = re.findall(r"^\$ (curl .* -o .*)$", PAGE, re.MULTILINE)[0]
    assert curl(demo, command, tmp_path) == 0
    lines = (tmp_path / "delays.csv").read_bytes().decode().split("\r\n")
    assert lines == ["key,departures", *(f"{row['key']},{row['departures']}" for row in by_prefix(records)), ""]
    (tmp_path / "delays.csv").unlink()
    assert curl(demo, command.replace("from delays", "from nowhere"), tmp_path) == 22
    assert not (tmp_path / "delays.csv").exists()


def curl(demo: httpx.Client, command: str, directory: Path) -> int:
    """Do what the command line says, with its exit code: a machine for the tests need not have the program."""
    words = shlex.split(command)
    data = [words[n + 1].partition("=") for n, word in enumerate(words) if word in ("-d", "--data-urlencode")]
    at = next(word for word in words if "localhost:8000" in word).partition("localhost:8000")[2]
    assert {"--fail", "-G"} <= {*words}
    answer = demo.get(at, params={name: value for name, _, value in data})
    if answer.is_error:
        return 22
    (directory / words[words.index("-o") + 1]).write_bytes(answer.content)
    return 0


def test_recipes_with_keys_or_times_read_part_of_a_table(demo: httpx.Client) -> None:
    for heading in ("Time series of windows", "The last minutes", "Change against the previous window"):
        asked = of(heading)
        (plan,) = rows(demo, {**asked, "sql": f"explain {asked['sql']}"})
        assert "start from" in plan["reads"], heading
    live = "explain select key from delay_windows where start > now() - interval 60 minutes"
    (plan,) = rows(demo, {"sql": live})
    assert "start from" in plan["reads"]
