"""What the console costs: how much is loaded at first, and how often an idle tab asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from service.server.console.test_console_accessibility import PLACES
from support.console.console_browser import Flights
from support.console.console_page import console
from support.run.length import long_or_short
from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Response

Served = tuple[Flights, str]
LARGEST_FIRST_LOAD = 300_000
IDLE_S = 30
CHART = "stores/hourly?tab=chart"
# Those that ask for most: others ask for no more than the first, and places of other stores for no more than these.
KINDS = ["", "stores/aircraft", "topology"]


def test_the_first_load_is_small_and_has_no_library_that_it_does_not_need(browser: Browser, served: Served) -> None:
    came: list[Response] = []
    with browser.new_context() as context:
        context.set_default_timeout(1000 * HANGING_S)
        page = context.new_page()
        page.on("response", lambda response: came.append(response))
        page.goto(served[1])
        page.locator(".plot canvas").first.wait_for()
        page.wait_for_load_state("networkidle")
        sizes = {response.url: len(response.body()) for response in came}
    assert sum(sizes.values()) < LARGEST_FIRST_LOAD, sizes
    assert not [url for url in sizes if "tabulator" in url or "dagre" in url]


def test_charts_are_drawn_in_a_browser_whose_machine_names_no_language(browser: Browser, served: Served) -> None:
    with console(browser, served[1], first=".plot canvas") as opened:
        opened.page.add_init_script("Object.defineProperty(Navigator.prototype, 'language', {value: 'en-US@posix'})")
        opened.page.reload()
        opened.page.locator(".plot canvas").first.wait_for()


class Requests:
    """What a page asks, and how many of these have been answered, or failed."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.asked: list[str] = []
        self._ended = 0
        page.on("request", self._begin)
        page.on("requestfinished", self._end)
        page.on("requestfailed", self._end)

    def settle(self) -> None:
        """Until every answer has come, and what it makes the page ask for, too."""
        while self._ended < len(self.asked):
            self._page.wait_for_timeout(5)
        self._page.evaluate("new Promise((done) => queueMicrotask(done))")

    def _begin(self, request: Request) -> None:
        self.asked.append(request.url)

    def _end(self, _: Request) -> None:
        self._ended += 1


@pytest.mark.parametrize("place", long_or_short([CHART, *PLACES], [CHART, *KINDS]))
def test_an_idle_tab_asks_less_than_once_a_second_and_none_that_nobody_sees(
    browser: Browser, served: Served, place: str
) -> None:
    with console(browser, f"{served[1]}/{place}", first="main h1") as opened:
        page = opened.page
        page.clock.install()
        page.reload(wait_until="networkidle")
        requests = Requests(page)
        page.clock.pause_at(page.evaluate("Date.now() + 10_000"))  # it goes on until the page has heard of this
        requests.settle()
        begun = len(requests.asked)
        for _ in range(IDLE_S * 2):
            page.clock.run_for(500)
            requests.settle()
        assert 0 < len(requests.asked) - begun < IDLE_S, requests.asked
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        requests.settle()
        before = len(requests.asked)
        page.clock.run_for(IDLE_S * 1000)
        requests.settle()
        assert requests.asked[before:] == [], "nobody sees it"
