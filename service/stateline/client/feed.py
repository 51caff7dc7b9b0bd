"""Read the change feed of a store, and resume it after a failure. The clients send the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stateline.client import requests
from stateline.client.answers import AnswerReader, event_failure, json_document
from stateline.client.events import Event, EventParser
from stateline.client.failures import UnreachableError
from stateline.client.requests import Request, Since
from stateline.client.results import HeadersJson, PositionJson
from stateline.client.retries import Attempts, Retries
from stateline_store import StatelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change of one key: its new value, or None if it was deleted."""

    key: Any
    value: Any
    timestamp: int | None
    partition: int
    offset: int
    """The offset in the store's changelog, or in a table's topic."""
    position: PositionJson
    """Pass it as `since` to continue after this change. It has offsets of the changelog, so it is no bound. For a
    table, it has offsets of the table's topic and is also a bound."""
    start: int | None = None
    """The start of the window or session. `end` is its end."""
    end: int | None = None
    headers: HeadersJson = None
    """The record's headers; None if the store keeps none."""


_CHANGE = AnswerReader(Change)


class Following:
    """The place of one reader in a change feed. For one thread or task."""

    def __init__(self, store: str, since: Since, partitions: Sequence[int] | None, retries: Retries) -> None:
        self._store = store
        self._since = since
        self._partitions = partitions
        self._last_id: str | None = None
        self._parser = EventParser()
        self._attempts = Attempts(retries)

    def request(self) -> Request:
        """Return the request that continues the feed after the last change."""
        self._last_id = self._parser.last_id or self._last_id
        self._parser = EventParser()
        return requests.changes(self._store, self._since, self._partitions, self._last_id)

    def connected(self) -> None:
        """Restart the time for retries, because the server has begun to answer."""
        self._attempts.restart_clock()

    def read(self, chunk: bytes) -> Iterator[Change]:
        """Yield the changes that these bytes complete. Read all of them. Then raises the server's error if it ended the
        feed.
        """
        for event in self._parser.feed(chunk):
            if event.type == "change":
                self._attempts.succeeded()
                yield self._change(event)
            elif event.type == "end":
                raise event_failure(event)

    def pause_s(self, failure: StatelineError | None, *, several: bool = False) -> float:
        """Return the seconds to wait before the feed continues, at least the server's `retry`. `failure` is None if the
        feed ended without a reason. `several`: there are several nodes. Raises the failure if a retry cannot help.
        """
        why = failure or UnreachableError("The server has ended the change feed without a reason: ask again.")
        pause_s = self._attempts.pause_s(requests.changes(self._store, self._since, None, None), why, several=several)
        if pause_s is None:
            raise why
        return max(pause_s, (self._parser.retry_ms or 0) / 1000)

    @staticmethod
    def _change(event: Event) -> Change:
        position = None if event.id is None else json_document(event.id)
        return _CHANGE.from_json(event.data, {**json_document(event.data), "position": position})
