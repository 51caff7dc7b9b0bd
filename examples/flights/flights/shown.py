"""What the demo shows of a request: the `curl` line that does the same, and its answer, shortened."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import orjson

_ENTRIES_SHOWN = 3
_SHOWN_CHARACTERS = 900


@dataclass(slots=True)
class LastRequest:
    """The last request of an `httpx.Client` whose response hook this is, and what came back: {} when that was no JSON
    object. For one thread."""

    curl: str = ""
    status: int = 0
    answer: str = ""

    def __call__(self, response: httpx.Response) -> None:
        self.curl = curl_of(response.request)
        self.status = response.status_code
        try:
            body = orjson.loads(response.read())
        except orjson.JSONDecodeError:
            body = {}
        self.answer = shortened(body if isinstance(body, dict) else {})


def curl_of(request: httpx.Request) -> str:
    """The `curl` line of a GET, or of a POST of JSON; what needs percent-encoding is left to curl, so that it can be
    read."""
    url = shlex.quote(str(request.url.copy_with(query=None)))
    if request.method == "POST":
        return f"curl -s {url} -d {shlex.quote(_cut(request.content.decode(), 200))}"
    if not request.url.params:
        return f"curl -s {url}"
    options = (
        f"{'-d' if quote(text, safe='') == text else '--data-urlencode'} {shlex.quote(f'{name}={text}')}"
        for name, text in request.url.params.items()
    )
    return f"curl -sG {url} {' '.join(options)}"


def shortened(body: Mapping[str, Any]) -> str:
    """An answer in one line: a few entries, and how many partitions instead of each."""
    short = dict(body)
    entries = short.get("entries")
    if isinstance(entries, list) and len(entries) > _ENTRIES_SHOWN:
        short["entries"] = [*entries[:_ENTRIES_SHOWN], f"… and {len(entries) - _ENTRIES_SHOWN} more"]
    partitions = short.get("partitions")
    if isinstance(partitions, Mapping) and len(partitions) > 1:
        short["partitions"] = f"… of {len(partitions)}"
    return _cut(orjson.dumps(short).decode())


def _cut(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= characters else f"{text[:characters]} …"
