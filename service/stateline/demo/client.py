"""Asks the demo's server, and writes each request as the `curl` line that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from stateline_store import StatelineError

_TIMEOUT_S = 90.0  # beyond the longest wait_ms
_ENTRIES_SHOWN = 3
_SHOWN_CHARACTERS = 900

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A request as a `curl` line, and what came back. `body` is {} when it was no JSON object."""

    curl: str
    status: int
    body: dict[str, Any]

    @property
    def shown(self) -> str:
        """The body in one line, shortened: a few entries, and how many partitions instead of each."""
        return _cut(orjson.dumps(_shortened(self.body)).decode())


class Client:
    """Requests to one server. One thread uses it. Raises `httpx.TransportError` when nothing answers."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)  # a proxy would not reach 127.0.0.1

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, parameters: Parameters | None = None) -> Answer:
        """GET; parameters that are mappings are sent as JSON, as `position_bound` is."""
        texts = {name: _text(value) for name, value in (parameters or {}).items()}
        url = self.base_url + path
        return _answer(curl_of_get(url, texts), self._http.get(url, params=texts))

    def key(self, store: str, key: str, parameters: Parameters | None = None) -> Answer:
        """The value of one key."""
        return self.get(f"/v1/stores/{store}/keys/{quote(key, safe='')}", parameters)

    def entries(self, path: str, parameters: Parameters) -> Iterator[dict[str, Any]]:
        """The entries of all pages, of one state. Raises `StatelineError` when a page is refused."""
        answer = self.get(path, parameters)
        while True:
            if answer.status != 200:
                raise StatelineError(f"{answer.curl} was refused: {answer.body.get('detail', answer.status)}")
            yield from answer.body["entries"]
            if "cursor" not in answer.body:
                return
            answer = self.get(path, {"cursor": answer.body["cursor"], "limit": parameters["limit"]})

    def query(self, store: str, body: Mapping[str, Any]) -> Answer:
        """POST any query as a JSON body."""
        url = f"{self.base_url}/v1/stores/{store}/query"
        data = orjson.dumps(body)
        curl = f"curl -s {shlex.quote(url)} -d {shlex.quote(_cut(data.decode(), 200))}"
        return _answer(curl, self._http.post(url, content=data, headers={"content-type": "application/json"}))


def curl_of_get(url: str, texts: Mapping[str, str]) -> str:
    """The `curl` line of a GET; what needs percent-encoding is left to curl, so that it can be read."""
    if not texts:
        return f"curl -s {shlex.quote(url)}"
    plain = {name: quote(text, safe="") == text for name, text in texts.items()}
    options = [
        f"{'-d' if plain[name] else '--data-urlencode'} {shlex.quote(f'{name}={text}')}" for name, text in texts.items()
    ]
    return f"curl -sG {shlex.quote(url)} {' '.join(options)}"


def _answer(curl: str, response: httpx.Response) -> Answer:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = {}
    return Answer(curl, response.status_code, body if isinstance(body, dict) else {})


def _text(value: Any) -> str:
    return orjson.dumps(value).decode() if isinstance(value, Mapping) else str(value)


def _shortened(body: Mapping[str, Any]) -> dict[str, Any]:
    short = dict(body)
    entries = short.get("entries")
    if isinstance(entries, list) and len(entries) > _ENTRIES_SHOWN:
        short["entries"] = [*entries[:_ENTRIES_SHOWN], f"… and {len(entries) - _ENTRIES_SHOWN} more"]
    partitions = short.get("partitions")
    if isinstance(partitions, Mapping) and len(partitions) > 1:
        short["partitions"] = f"… of {len(partitions)}"
    return short


def _cut(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= characters else f"{text[:characters]} …"
