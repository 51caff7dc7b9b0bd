"""A browser, and the console's application with a server, for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.console.console_browser import BrowserMissingError, Flights, chromium, served_flights
from support.console.console_page import Console, console
from support.kafka.kafka_broker import missing_is_a_failure

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A real Chromium. For this folder only: while it runs, this thread counts as having an event loop."""
    try:
        with chromium() as browser:
            yield browser
    except BrowserMissingError as error:
        pytest.fail(str(error)) if missing_is_a_failure() else pytest.skip(str(error))


@pytest.fixture(scope="package")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Flights, str]]:
    """The console's application with all its data committed, and the address of its server."""
    with served_flights(tmp_path_factory.mktemp("c")) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser, served: tuple[Flights, str]) -> Iterator[Console]:
    """One page for all tests of a file: each goes to an address of its own. Times are those of New York."""
    with console(browser, f"{served[1]}/stores", "main h1", timezone_id="America/New_York") as opened:
        yield opened


@pytest.fixture
def unrouted(page: Console) -> Iterator[None]:
    """Afterwards the page asks the server itself again."""
    yield
    page.page.unroute_all(behavior="ignoreErrors")
