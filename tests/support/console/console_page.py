"""The console as a person uses it, in a browser: what tests do with it, and what it must never do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

# Members of an answer that are another's the next time.
_VOLATILE = {"cursor", "partitions"}


class Console:
    """One open page."""

    def __init__(self, page: Page, url: str, first: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)
        page.on("request", self._check)
        page.goto(url)
        page.wait_for_selector(first)

    def visit(self, address: str) -> None:
        """Open an address below the server's, as by a link that somebody sent."""
        self.page.goto(urljoin(self.url, f"/{address}"))
        self.page.wait_for_selector("main h1")

    def told(self) -> str:
        """How the question of this address went."""
        said = self.page.locator("#summary").filter(has_text=re.compile("[^.…]")).filter(has_not_text="Asking")
        said.wait_for()
        return said.inner_text()

    def choose(self, store: str) -> None:
        """Select a store by its card."""
        self.page.get_by_role("button", name=store, exact=True).click()

    def fill_query(self, query: str, **values: str) -> None:
        """Choose a query of the store and fill its form, with nothing else in it."""
        page = self.page
        page.get_by_role("button", name="Clear").click()
        page.select_option("#query-type", query)
        page.evaluate("document.querySelector('#query-form details').open = true")
        for name, value in values.items():
            field = page.locator(f"#field-{name}")
            tag = field.evaluate("e => e.type")
            if tag == "checkbox":
                field.check()
            elif tag.startswith("select"):
                field.select_option(value)
            else:
                field.fill(value)

    def ask(self, query: str, **values: str) -> str:
        """Ask a query; the sentence that says how it went."""
        self.fill_query(query, **values)
        self.page.locator("#query-form button[type=submit]").click()
        return self.summary()

    def summary(self) -> str:
        """How the query went that is being asked."""
        summary = self.page.locator("#result-summary")
        summary.filter(has_not_text="Asking").wait_for()
        return summary.inner_text()

    def answer(self) -> str:
        """The exact JSON of the answer that is shown."""
        return self.page.locator("#result details pre").text_content() or ""

    def curl(self) -> str:
        """What the page's curl line prints when a shell runs it."""
        line = self.page.locator("#curl").inner_text()
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout

    def card(self, store: str, fact: str) -> str:
        """What the card of a store says."""
        card = self.page.locator(".card", has=self.page.get_by_role("button", name=store, exact=True))
        return card.locator("div", has=self.page.get_by_text(fact, exact=True)).locator("dd").inner_text()

    def _note(self, message: ConsoleMessage) -> None:
        # A status of 400 and more is written to the browser's console whatever the page makes of it.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _check(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"asked {request.url}")


@contextmanager
def console(browser: Browser, url: str, first: str = ".card", **context: Any) -> Iterator[Console]:
    """A console in a fresh profile, once there is such an element.

    Fails when the page raised, broke its Content-Security-Policy, or asked another server.
    """
    with browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context)) as made:
        made.set_default_timeout(60_000)
        opened = Console(made.new_page(), url, first)
        yield opened
        assert opened.complaints == []


def lasting(text: str) -> Any:
    """An answer without what is another's the next time."""
    return {name: member for name, member in json.loads(text).items() if name not in _VOLATILE}
