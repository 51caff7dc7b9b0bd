"""The console's list of stores, in a real Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from stateline.dsl.app import App
from support.apps.console_app import aircraft_records
from support.console.console_browser import Flights, flights
from support.console.console_page import Console, console
from support.console.told import change_look
from support.processes.ports import free_port
from support.processes.running_worker import produce
from support.processes.served_here import served_here

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

Served = tuple[Flights, str]


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Console]:
    with console(browser, f"{served[1]}/stores", first="table") as opened:
        yield opened


def row(page: Console, store: str) -> list[str]:
    found: list[str] = page.page.locator("tbody tr", has_text=store).locator("th, td").all_inner_texts()
    return found


def test_every_store_is_there_with_its_kind_types_and_state(page: Console) -> None:
    assert row(page, "aircraft")[:5] == ["aircraft", "timestamped key value", "string → json", "2 active", "0"]
    kinds = [row(page, store)[1] for store in ("airports", "hourly", "rushes", "distances", "routes")]
    assert kinds == ["versioned", "window", "timestamped session", "key value", "key value"]
    page.page.get_by_role("link", name="hourly").click()
    page.page.wait_for_url("**/stores/hourly")


def test_the_age_of_the_newest_commit_starts_anew_as_records_come(page: Console, served: Served) -> None:
    def old(said: dict[str, Any]) -> dict[str, Any]:
        return {"stores": [store | {"committed_at_ms": 1} for store in said["stores"]]}

    change_look(page.page, old)
    page.hurry()
    page.page.locator("tbody tr", has_text="aircraft").get_by_text(" days ago").wait_for()
    produce(served[0].log, "flights", aircraft_records(3))
    page.page.unroute_all(behavior="wait")
    page.page.locator("tbody tr", has_text="aircraft").get_by_text(re.compile(r" (ms|s|min) ago$")).wait_for()


def test_a_store_that_waits_for_a_commit_or_has_no_worker_stands_out(page: Console) -> None:
    long_ago = int(time.time() * 1000) - 600_000

    def waiting(said: dict[str, Any]) -> dict[str, Any]:
        first, second, *others = said["stores"]
        stuck = first | {"staged_records": 1234, "committed_at_ms": long_ago}
        return {"stores": [stuck, second | {"not_ready": "No worker runs it."}, *others]}

    change_look(page.page, waiting)
    page.hurry()
    page.page.locator("tr.warn", has_text="aircraft").get_by_text("1,234").wait_for()
    assert row(page, "aircraft")[-1] == "10 min ago"
    page.page.locator("tr.bad", has_text="airports").get_by_text("No worker runs it.").wait_for()


def test_a_node_with_backups_shows_their_age_and_failures(page: Console) -> None:
    long_ago = int(time.time() * 1000) - 600_000

    def backed_up(said: dict[str, Any]) -> dict[str, Any]:
        first, *others = said["stores"]
        stores = [first | {"backed_up_at_ms": long_ago}, *others]
        partitions = {number: each | {"backed_up_at_ms": long_ago} for number, each in said["partitions"].items()}
        figures = {"last_ms": long_ago, "made": 3, "failed": 2, "written_bytes": 5_000_000}
        return {"stores": stores, "partitions": partitions, "backup": figures}

    assert page.page.get_by_text("Last backup").count() == 0, "it makes no backups"
    change_look(page.page, backed_up)
    page.hurry()
    page.page.get_by_role("columnheader", name="Last backup").wait_for()
    assert row(page, "aircraft")[-1] == "10 min ago"
    assert row(page, "airports")[-1] == "unknown"
    page.visit("stores/aircraft?tab=partitions")
    table = page.page.get_by_role("table", name="Partitions of aircraft")
    table.get_by_role("columnheader", name="Last backup").wait_for()
    table.get_by_text("10 min ago").first.wait_for()
    page.visit("nodes")
    facts = page.page.get_by_role("region", name="Backups of this node")
    facts.get_by_text("4.8 MiB").wait_for()
    assert facts.locator("dd").all_inner_texts() == ["10 min ago", "3", "2", "4.8 MiB"]


def test_an_application_without_stores_is_told_how_to_make_one(browser: Browser, tmp_path: Path) -> None:
    with (
        served_here(tmp_path, app=App("flights-app")) as here,
        console(browser, f"http://127.0.0.1:{here.port}/stores", first=".nothing") as page,
    ):
        page.page.get_by_text("app.table(topic").wait_for()


def test_what_is_not_committed_yet_is_told_apart(browser: Browser, tmp_path: Path) -> None:
    with (
        flights(tmp_path, commit_interval_ms=3_600_000) as made,
        made.server(free_port()) as url,
        console(browser, f"{url}/stores", first="table") as page,
    ):
        page.page.locator("tbody tr", has_text="aircraft").get_by_text("62", exact=True).wait_for()
        assert row(page, "aircraft")[-2:] == ["62", "none yet"]
