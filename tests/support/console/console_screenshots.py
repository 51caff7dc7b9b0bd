"""Takes the pictures of docs/console.md from the console: `python -m support.console.console_screenshots` in tests/."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import REPOSITORY
from support.apps.console_app import departure_records
from support.console.console_browser import Flights, chromium, served_flights
from support.console.console_page import Console, console
from support.processes.running_worker import produce

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES = REPOSITORY / "docs" / "images"
LOOKS = 20  # until the charts have something to show
SIZES: dict[str, Any] = {
    "desktop": {"viewport": {"width": 1280, "height": 1000}},
    "phone": {"viewport": {"width": 360, "height": 740}},
}


def take(browser: Browser, url: str) -> None:
    """All pictures, one after the other."""
    with console(browser, url, **SIZES["desktop"]) as page:
        page.choose("aircraft")
        page.ask("key", key="N001", isolation_level="read_committed")
        page.page.evaluate("document.querySelector('#query-form details').open = false")
        page.page.fill("#browse-prefix", "N0")
        page.page.locator("#browse-form button").click()
        page.page.locator("#browse-result table").wait_for()
        page.page.evaluate("scrollTo(0, 0)")
        _save(page, "console-desktop")
        for _ in range(LOOKS):
            page.page.get_by_role("button", name="Ask", exact=True).click()
            with page.page.expect_response("**/v1/console*"):
                page.summary()
        page.page.locator(".charts").screenshot(path=IMAGES / "console-charts.png")
    with console(browser, url, **SIZES["desktop"], color_scheme="dark") as page:
        _ask_history(page)
        page.page.evaluate("document.querySelector('#of-a-store').scrollIntoView()")
        _save(page, "console-dark")
    with console(browser, url, **SIZES["phone"]) as page:
        _save(page, "console-phone")
        page.choose("hourly")
        page.page.fill("#window-key", "JFK")
        page.page.keyboard.press("Enter")
        page.page.locator("#window-table table").wait_for()
        page.page.evaluate("document.querySelector('#window-section').scrollIntoView()")
        _save(page, "console-phone-windows")


def _ask_history(page: Console) -> None:
    page.choose("airports")
    page.ask("versions", key="JFK")
    page.page.evaluate("document.querySelector('#query-form details').open = false")
    page.page.fill("#moment-key", "JFK")
    page.page.keyboard.press("Enter")
    page.page.locator("#moment-value").get_by_text("open again").wait_for()
    page.page.get_by_role("button", name="Earlier change").click()
    page.page.locator("#moment-value").get_by_text("snow").wait_for()


def _save(page: Console, name: str) -> None:
    page.page.screenshot(path=IMAGES / f"{name}.png")


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
        take(browser, url)
