"""What a test has the console's server say, in place of what it would."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

_NDJSON = "application/x-ndjson"

Answer = Mapping[str, Any] | Callable[[dict[str, str]], Mapping[str, Any]]


def say(page: Page, path: str, answer: Answer, status: int = 200) -> None:
    """From now on GET of this path is answered so: by a body, or by what is called with its parameters."""

    def answered(route: Route) -> None:
        given = {name: values[-1] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        body = answer(given) if callable(answer) else answer
        kind = "application/json" if status < 400 else "application/problem+json"
        route.fulfill(status=status, content_type=kind, body=json.dumps(body))

    page.route(lambda url: urlsplit(url).path == path, answered)


def change_look(page: Page, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """From now on each look has these members in place of the server's: `change` is called with what it said."""

    def answered(route: Route) -> None:
        response = route.fetch()
        said = response.json()
        route.fulfill(response=response, body=json.dumps(said | change(said)))

    page.route(lambda url: urlsplit(url).path == "/v1/console", answered)


def stream(page: Page, store: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """From now on streams of all of a store's entries have these."""
    body = "".join(json.dumps(entry) + "\n" for entry in entries)

    def answered(route: Route) -> None:
        if _NDJSON not in route.request.headers["accept"]:
            return route.continue_()
        return route.fulfill(body=body, content_type=_NDJSON)

    page.route(f"**/v1/stores/{store}/**", answered)
