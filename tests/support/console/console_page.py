"""The console as a person uses it, in a browser: what tests do with it, and what it must never do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urljoin, urlsplit

from support.run.patience import HANGING_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

# Members of an answer that are another's the next time.
_VOLATILE = {"cursor", "partitions"}
_HURRY = """() => {
  const plain = window.setTimeout;
  const isPause = (ms) => ms >= 1000 && ms <= 5000;
  window.setTimeout = (action, ms, ...given) => plain(action, isPause(ms) ? ms / 10 : ms, ...given);
  document.dispatchEvent(new Event("visibilitychange"));
}"""


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

    def wait_for_passing(self, selector: str, text: str) -> None:
        """Until one element alone is such, and has this text. It is looked for in each frame, because it may go with
        the next answer."""
        self.page.wait_for_function(
            "([selector, text]) => { const [found, ...more] = document.querySelectorAll(selector);"
            " return found?.textContent.includes(text) && !more.length; }",
            arg=[selector, text],
        )

    def hurry(self) -> None:
        """Look at the server now, and from now on ten times as often as every few seconds, until another page is
        loaded. Whoever waits for the next look would else wait for little but that."""
        self.page.evaluate(_HURRY)

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
        made.set_default_timeout(1000 * HANGING_S)
        opened = Console(made.new_page(), url, first)
        yield opened
        assert opened.complaints == [], opened.complaints


def query(page: Page) -> dict[str, str]:
    """What the query of a page's address has; of a name that stands twice the last."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(page.url).query).items()}


def query_of(page: Console) -> dict[str, list[str]]:
    """The same with all that each name has."""
    return parse_qs(urlsplit(page.page.url).query)


def lasting(text: str) -> Any:
    """An answer without what is another's the next time."""
    return {name: member for name, member in json.loads(text).items() if name not in _VOLATILE}
