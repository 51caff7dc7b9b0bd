"""A browser, and the console's application with a server, for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.console.console_browser import BrowserMissingError, Flights, chromium, served_flights
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
