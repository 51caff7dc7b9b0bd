"""Takes the pictures of docs/console.md from the console: `python -m support.console.console_screenshots` in tests/."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from support import REPOSITORY
from support.apps.console_app import departure_records
from support.console.console_browser import Flights, chromium, served_flights
from support.console.console_page import Console, console
from support.processes.running_worker import produce

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES = REPOSITORY / "docs" / "images"
SECONDS = 150  # until the charts of the last hour have something to show
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
TALL: dict[str, Any] = {"viewport": {"width": 1280, "height": 1180}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
DARK: dict[str, Any] = {"color_scheme": "dark"}

SQL = """select start, key as airport, (value->>'flights')::int as flights
from hourly
where list_contains($1, key)
order by start"""
BY_AIRPORT = urlencode({"q": SQL, "params": '[["JFK", "LGA"]]'})


class Picture(NamedTuple):
    """One: the address, what has to be there first, the window."""

    name: str
    address: str
    first: str
    window: dict[str, Any]


PICTURES = (
    Picture("overview", "?from=5", ".history canvas", DESKTOP),
    Picture("store", "stores/aircraft?find=N01", ".tabulator-row", DESKTOP),
    Picture("key", "stores/airports/keys/JFK", ".spans .span", DESKTOP | DARK),
    Picture("chart", "stores/hourly?tab=chart&to=2013-03-01T12:00Z", ".strips", DESKTOP | DARK),
    Picture("sql", f"sql?{BY_AIRPORT}&view=chart", ".chart canvas", TALL),
    Picture("topology", "topology", ".topology svg", DESKTOP),
    Picture("phone", "", ".card", PHONE),
    Picture("phone-key", "stores/hourly/keys/JFK?to=2013-03-01T12:00Z", ".spans .span", PHONE),
)


def take(browser: Browser, url: str) -> None:
    """All pictures, one after the other."""
    for name, address, first, window in PICTURES:
        with console(browser, url, **window) as page:
            page.visit(address)
            page.page.locator(first).first.wait_for()
            _settle(page)
            page.page.screenshot(path=IMAGES / f"console-{name}.png")


def _settle(page: Console) -> None:
    """Charts are drawn a frame after their data are there."""
    page.page.wait_for_load_state("networkidle")
    page.page.wait_for_timeout(500)


@contextmanager
def _ingest(made: Flights) -> Iterator[None]:
    """Departures that go on until the block ends, now more and now fewer."""
    done = threading.Event()

    def write() -> None:
        first = 60
        for turn in itertools.count():
            if done.wait(0.25):
                return
            count = 2 + turn * 7 % 11
            produce(made.log, "departures", departure_records(count, first))
            first += count

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        chromium() as browser,
        served_flights(Path(directory)) as (made, url),
        _ingest(made),
    ):
        threading.Event().wait(SECONDS)
        take(browser, url)
