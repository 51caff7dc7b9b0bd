"""Times that readers in several zones write and send to one another, in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from support.apps.console_app import HOUR_MS, START_MS
from support.console.console_browser import Flights
from support.console.console_page import console, query
from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

Served = tuple[Flights, str]
Reader = Callable[[str, str], "Page"]

SNOW = f"{START_MS + HOUR_MS}"  # 2013-02-27T22:00Z, 17:00 in New York, 07:00 of the next day in Tokyo
NEW_YORK, TOKYO = "America/New_York", "Asia/Tokyo"
# On 2013-11-03 it was half past one twice in New York.
FIRST_HALF_PAST_ONE, SECOND_HALF_PAST_ONE = "1383456600000", "1383460200000"
WINDOWS = "queries?store=hourly&ask=key_windows&key=JFK"


@pytest.fixture(scope="module")
def at(browser: Browser, served: Served) -> Iterator[Reader]:
    """The page of a reader in a zone, at an address."""
    with ExitStack() as open_pages:
        pages: dict[str, Page] = {}

        def visit(zone: str, address: str) -> Page:
            url = f"{served[1]}/{address}"
            if zone not in pages:
                pages[zone] = open_pages.enter_context(console(browser, url, "main form", timezone_id=zone)).page
            pages[zone].goto(url)
            pages[zone].locator("main form").first.wait_for()
            return pages[zone]

        yield visit


def from_field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="From, inclusive")


def starts(page: Page) -> list[str]:
    """The UTC starts of the windows that are listed, by the titles of their cells."""
    page.locator("#summary", has_text="Status 200").wait_for()
    cells = page.locator(".tabulator-cell[tabulator-field='start'], .tabulator-row .tabulator-cell:nth-child(1)")
    cells.first.wait_for()
    return [title or "" for title in cells.evaluate_all("all => all.map((cell) => cell.title)")]


@pytest.mark.parametrize("place", [WINDOWS, "stores/hourly?ask=key_windows&key=JFK"])
def test_a_time_without_a_zone_is_the_readers_and_a_link_is_of_the_same_moment_elsewhere(
    at: Reader, place: str
) -> None:
    page = at(NEW_YORK, place)
    from_field(page).fill("2013-02-27 17:00")
    page.keyboard.press("Enter")
    page.wait_for_url("**from=**")
    assert query(page)["from"] == "2013-02-27T22:00:00Z"
    page.get_by_text("2013-02-27T22:00:00Z. America/New_York, unless Z or an offset is written.").wait_for()
    assert from_field(page).input_value() == "2013-02-27 17:00"  # as it was written
    assert "from=2013-02-27T22%3A00%3A00Z" in page.locator("#curl").inner_text()
    elsewhere = at(TOKYO, "{0.path}?{0.query}".format(urlsplit(page.url)).lstrip("/"))
    assert from_field(elsewhere).input_value() == "2013-02-28 07:00"
    assert starts(elsewhere) == starts(page)


@pytest.mark.parametrize("written", ["2013-02-27T22:00Z", "2013-02-28 00:00+02:00", SNOW])
def test_a_zone_that_is_written_is_taken_as_said(at: Reader, written: str) -> None:
    page = at(NEW_YORK, WINDOWS)
    from_field(page).fill(written)
    page.keyboard.press("Enter")
    page.wait_for_url("**from=**")
    assert query(page)["from"] in ("2013-02-27T22:00:00Z", SNOW)


# Types into the field as soon as it is in the document, before the page is painted.
TYPE_AT_ONCE = """new MutationObserver((_, observer) => {
  const field = document.getElementById("field-from");
  if (field === null) return;
  observer.disconnect();
  field.value = "2013-02-27T22:00Z";
  field.dispatchEvent(new Event("input", { bubbles: true }));
}).observe(document, { childList: true, subtree: true });"""


def test_text_typed_while_the_page_appears_stays(browser: Browser, served: Served) -> None:
    with browser.new_context() as context:
        context.set_default_timeout(1000 * HANGING_S)
        page = context.new_page()
        page.add_init_script(TYPE_AT_ONCE)
        page.goto(f"{served[1]}/{WINDOWS}")
        starts(page)
        assert from_field(page).input_value() == "2013-02-27T22:00Z"
        page.get_by_role("button", name="Ask", exact=True).click()
        assert query(page)["from"] == "2013-02-27T22:00:00Z"


def test_a_link_whose_time_has_no_zone_is_utcs_as_the_server_says(at: Reader) -> None:
    page = at(NEW_YORK, f"{WINDOWS}&from=2013-02-27T22:00")
    assert from_field(page).input_value() == "2013-02-27 17:00"
    page = at(NEW_YORK, "stores/airports/keys/JFK?as_of=2013-02-27T22:00")
    page.locator(".card .value", has_text="snow").first.wait_for()
    assert page.get_by_role("textbox", name="As of").input_value() == "2013-02-27 17:00"


def test_what_is_no_time_is_said_and_not_asked(at: Reader) -> None:
    page = at(NEW_YORK, WINDOWS)
    for written in ("yesterday", "2013-02-30", "20130227", "2013-02-27T22"):
        from_field(page).fill(written)
        page.keyboard.press("Enter")
        page.get_by_text(f"'{written}' is no time: write 2013-03-01 12:00, ISO 8601, or milliseconds.").wait_for()
    assert "from" not in query(page)


@pytest.mark.parametrize("as_of", [FIRST_HALF_PAST_ONE, SECOND_HALF_PAST_ONE])
def test_a_time_that_nobody_edits_does_not_move_in_the_hour_that_comes_twice(at: Reader, as_of: str) -> None:
    page = at(NEW_YORK, f"stores/airports/keys/JFK?as_of={as_of}")
    page.locator(".card .value").first.wait_for()
    offset = "-04:00" if as_of == FIRST_HALF_PAST_ONE else "-05:00"
    field = page.get_by_role("textbox", name="As of")
    assert field.input_value() == f"2013-11-03 01:30{offset}"
    page.get_by_role("button", name="Show", exact=True).click()
    assert query(page)["as_of"] == as_of
    field.fill(field.input_value())  # nor when the same is written
    page.keyboard.press("Enter")
    assert query(page)["as_of"] == as_of


def test_where_there_is_room_times_say_their_zone(at: Reader) -> None:
    page = at(NEW_YORK, f"stores/airports/keys/JFK?as_of={SNOW}")
    page.get_by_role("table", name="Versions of JFK, the newest first, times in America/New_York").wait_for()
    assert "2013-02-27 17:00:00 2013-02-27T22:00:00.000Z" in page.get_by_text("Valid from").first.inner_text()
    page = at(NEW_YORK, "stores/hourly/keys/JFK")
    page.get_by_role("table", name="Windows of JFK, the newest first, times in America/New_York").wait_for()
