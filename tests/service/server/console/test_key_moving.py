"""What the console says of one key while answers are on their way, cut, or not committed, in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.apps.console_app import HOUR_MS, LARGE, START_MS
from support.console.console_browser import Flights, flights, served_flights
from support.console.console_page import console, query
from support.processes.ports import free_port
from support.processes.running_worker import eventually, produce
from support.run.length import long_only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

Served = tuple[Flights, str]

SHOWN = ".key-place dl"
DAY_MS = 24 * HOUR_MS
PAGE = 500  # entries that the place asks for at once


@pytest.fixture(scope="module")
def moving(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with flights(tmp_path_factory.mktemp("m")) as made, made.server(free_port()) as url:
        yield made, url


def depart(made: Flights, key: str, *times_ms: int, delay: int = 1) -> None:
    value = json.dumps({"number": 1, "delay": delay, "to": "SFO"}).encode()
    produce(made.log, "departures", [(key.encode(), value, at) for at in times_ms])


def report(made: Flights, key: str, *values: Any, first_ms: int = START_MS) -> None:
    """So many versions of an airport, a millisecond apart."""
    records = [(key.encode(), json.dumps(value).encode(), first_ms + i) for i, value in enumerate(values)]
    produce(made.log, "airport-status", records)


def level(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def answered(page: Page, path: str, times: int) -> None:
    """Until it was asked so many times more at each level, and answered."""
    for _ in range(2 * times):
        with page.expect_response(f"**/{path}?*"):
            pass


# Watching by asking


@pytest.mark.parametrize(
    ("store", "noun", "columns"),
    [
        ("hourly", "windows", "Windows"),
        pytest.param("rushes", "sessions", "Sessions", marks=long_only("sessions are watched as windows are")),
    ],
)
def test_what_falls_out_of_the_newest_is_not_deleted(
    browser: Browser, moving: Served, store: str, noun: str, columns: str
) -> None:
    made, url = moving
    key = f"FULL-{noun}"
    depart(made, key, *(START_MS + i * HOUR_MS for i in range(PAGE)))
    kept = f"{url}/v1/stores/{store}/keys/{key}/{noun}?limit={PAGE}&isolation_level=read_committed"
    eventually(lambda: len(httpx.get(kept).json().get("entries", ())) == PAGE, "all of them are committed")
    with console(browser, f"{url}/stores/{store}/keys/{key}?every=1", SHOWN) as opened:
        page = opened.page
        rows = page.get_by_role("table", name=f"{columns} of {key}").locator("tbody tr")
        rows.nth(PAGE - 1).wait_for(state="attached")
        opened.hurry()
        depart(made, key, START_MS + PAGE * HOUR_MS)
        page.get_by_text(f"The newest {PAGE} {noun}").wait_for()
        changes = page.get_by_role("table", name=f"Changes of {key}")
        changes.wait_for()
        answered(page, f"keys/{key}/{noun}", 2)
        assert changes.locator("tbody tr").count() == 1
        assert changes.get_by_text("deleted").count() == 0


def test_other_times_are_another_question_and_nothing_in_them_is_a_change(browser: Browser, moving: Served) -> None:
    made, url = moving
    depart(made, "TIMES", *(START_MS + i * HOUR_MS for i in range(4)))
    with console(browser, f"{url}/stores/hourly/keys/TIMES?every=1", SHOWN, timezone_id="UTC") as opened:
        page = opened.page
        rows = page.get_by_role("table", name="Windows of TIMES").locator("tbody tr")
        rows.nth(3).wait_for()
        opened.hurry()
        for first, count in (("2013-02-27 23:00", 2), ("", 4)):
            page.get_by_role("textbox", name="First start").fill(first)
            page.keyboard.press("Enter")
            rows.nth(count).wait_for(state="detached")
            rows.nth(count - 1).wait_for()
            answered(page, "keys/TIMES/windows", 2)
            page.get_by_text("No change seen yet.").wait_for()
        depart(made, "TIMES", START_MS, delay=7)
        page.get_by_role("table", name="Changes of TIMES").get_by_text("delay.total: 1 → 8").wait_for()


@long_only("the test before has other times of windows")
def test_another_moment_of_a_versioned_key_is_no_change_of_it(browser: Browser, moving: Served) -> None:
    made, url = moving
    report(made, "LATER", {"runways": 1}, {"runways": 2})
    with console(browser, f"{url}/stores/airports/keys/LATER?every=1", SHOWN) as opened:
        page = opened.page
        level(page, "read_committed").get_by_text("runways: 2").wait_for()
        opened.hurry()
        page.get_by_role("button", name="Earlier change").click()
        page.get_by_role("button", name="Earlier change").click()
        level(page, "read_committed").get_by_text("runways: 1").wait_for()
        answered(page, "keys/LATER", 2)
        page.get_by_text("No change seen yet.").wait_for()
        report(made, "LATER", {"runways": 3}, first_ms=START_MS + HOUR_MS)  # the newest is watched, whichever is shown
        page.get_by_role("table", name="Changes of LATER").get_by_text("runways: 2 → 3").wait_for()
        level(page, "read_committed").get_by_text("runways: 1").wait_for()


# Answers on their way


def test_a_value_never_stands_under_another_moment(browser: Browser, moving: Served) -> None:
    made, url = moving
    report(made, "SLOW", {"runways": 1}, {"runways": 2}, first_ms=START_MS)
    held: list[Route] = []
    with console(browser, f"{url}/stores/airports/keys/SLOW", SHOWN, timezone_id="UTC") as opened:
        page = opened.page
        moment = page.get_by_role("region", name="The newest")
        moment.get_by_text("runways: 2").first.wait_for()
        page.route("**/keys/SLOW?as_of=*", lambda route: held.append(route))
        page.get_by_role("button", name="Earlier change").click()
        page.get_by_role("button", name="Earlier change").click()
        page.get_by_text("Asking for 2013-02-27 21:00:00 …").wait_for()
        moment.get_by_text("runways: 2").first.wait_for()
        assert page.get_by_role("heading", name="As of").count() == 0
        for route in held:
            route.continue_()
        page.get_by_role("region", name="As of 2013-02-27 21:00:00").get_by_text("runways: 1").first.wait_for()
        assert page.get_by_text("Asking for").count() == 0


# More versions than one asks for at once


@long_only("test_store.py goes through pages, and links to one")
def test_older_versions_are_a_page_away_and_a_link_to_it_lasts(browser: Browser, moving: Served) -> None:
    made, url = moving
    report(made, "MANY", *({"runways": i} for i in range(2 * PAGE + 5)))
    with console(browser, f"{url}/stores/airports/keys/MANY", SHOWN) as opened:
        page = opened.page
        rows = page.get_by_role("table", name="Versions of MANY").locator("tbody tr")

        def runways(first: int, last: int) -> None:
            rows.first.get_by_text(f'{{"runways": {first}}}').wait_for()
            rows.last.get_by_text(f'{{"runways": {last}}}').wait_for()
            assert rows.count() == first - last + 1

        more = page.get_by_role("navigation", name="More versions")
        rows.last.get_by_text("see the older versions").wait_for()
        runways(2 * PAGE + 4, PAGE + 5)
        more.get_by_role("link", name="Older versions").click()
        runways(PAGE + 4, 5)
        more.get_by_role("link", name="Older versions").click()
        runways(4, 0)
        rows.last.get_by_text("the first known").wait_for()
        assert more.get_by_role("link", name="Older versions").count() == 0
        page.reload()
        runways(4, 0)
        more.get_by_role("link", name="Newer versions").click()
        runways(PAGE + 4, 5)
        more.get_by_role("link", name="Newer versions").click()
        runways(2 * PAGE + 4, PAGE + 5)
        assert more.get_by_role("link", name="Newer versions").count() == 0
        page.go_back()
        runways(PAGE + 4, 5)
        more.get_by_role("link", name="Newest versions").click()
        runways(2 * PAGE + 4, PAGE + 5)
        assert query(page) == {}


# Numbers


def test_numbers_that_are_drawn_are_told_exactly(browser: Browser, moving: Served) -> None:
    made, url = moving
    report(made, "LARGE", {"runways": LARGE}, {"runways": LARGE + 2}, {"runways": LARGE + 6})
    with console(browser, f"{url}/stores/airports/keys/LARGE", SHOWN) as opened:
        drawing = opened.page.get_by_role("img", name="runways of LARGE over time: 3 bars")
        drawing.wait_for()
        assert f"numbers from {LARGE:,} to {LARGE + 6:,}" in (drawing.get_attribute("aria-label") or "")
        assert opened.page.locator(".spans-scale span").all_inner_texts() == [f"{LARGE + 6:,}", f"{LARGE:,}"]


def test_a_name_with_a_dot_and_a_member_of_a_member_are_two_numbers(browser: Browser, moving: Served) -> None:
    made, url = moving
    report(made, "DOTS", {"a.b": 1, "a": {"b": 20}})
    with console(browser, f"{url}/stores/airports/keys/DOTS", SHOWN) as opened:
        choice = opened.page.get_by_label("Drawn")
        choice.wait_for()
        assert choice.locator("option").all_inner_texts() == ["a.b", "value.a.b"]
        choice.select_option("value.a.b")
        opened.page.get_by_role("img", name="numbers from 20 to 20").wait_for()


# What is not committed


def test_windows_sessions_and_versions_at_both_levels_are_side_by_side(browser: Browser, tmp_path: Path) -> None:
    with served_flights(tmp_path):
        pass
    with flights(tmp_path, commit_interval_ms=DAY_MS) as made, made.server(free_port()) as url:
        depart(made, "JFK", START_MS, START_MS + 100 * HOUR_MS, delay=1000)
        report(made, "JFK", {"state": "closed", "runways": 0}, first_ms=START_MS + 10 * HOUR_MS)
        with console(browser, f"{url}/stores/hourly/keys/JFK?every=1", SHOWN) as opened:
            page = opened.page
            table = page.get_by_role("table", name="Windows of JFK")
            table.get_by_text("delay.total: ").first.wait_for()
            heads = table.locator("thead th").all_inner_texts()
            assert heads == ["Start", "End, excluded", "read_committed", "read_uncommitted"]
            newest = table.locator("tbody tr").first.locator("td")
            newest.nth(2).get_by_text('"flights": 1').wait_for()
            assert newest.nth(1).inner_text() == "not there"
            page.get_by_text("in the table beside the committed ones.").wait_for()
            for name in ("read_committed", "read_uncommitted"):
                level(page, name).get_by_text("of any keys, not committed").wait_for()

            page.goto(f"{url}/stores/rushes/keys/JFK?every=1")
            table = page.get_by_role("table", name="Sessions of JFK")
            newest = table.locator("tbody tr").first.locator("td")
            newest.nth(2).get_by_text("1", exact=True).wait_for()
            assert newest.nth(1).inner_text() == "not there"
            table.get_by_text("gone").wait_for()  # it has become a longer one

            page.goto(f"{url}/stores/airports/keys/JFK?every=1")
            page.get_by_text("What was changed is not committed yet:").wait_for()
            level(page, "read_committed").get_by_text("open again").wait_for()
            level(page, "read_uncommitted").get_by_text("closed").wait_for()


def test_levels_that_are_the_same_are_said_so(browser: Browser, served: Served) -> None:
    with console(browser, f"{served[1]}/stores/hourly/keys/JFK", SHOWN) as opened:
        opened.page.get_by_text("Both levels show the same windows.").wait_for()
        table = opened.page.get_by_role("table", name="Windows of JFK")
        assert table.locator("thead th").all_inner_texts() == ["Start", "End, excluded", "Value"]
