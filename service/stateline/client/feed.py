"""The change feed of a store, and how it is taken up again: decided here, received elsewhere."""

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
    """A committed change of one key: its new value, None when it was deleted."""

    key: Any
    value: Any
    timestamp: int | None
    partition: int
    offset: int
    """Of the topic that the changes are read from: the store's changelog, or the topic of a table."""
    position: PositionJson
    """All that was given so far, to go on after it as `since`. It is of that topic: of a table, whose input it is, it
    can be a bound as well."""
    start: int | None = None
    """Of a window or session, as is `end`."""
    end: int | None = None
    headers: HeadersJson = None
    """Of the record, in a store that keeps them; None in others."""


_CHANGE = AnswerReader(Change)


class Following:
    """Where one reader of a store's changes is. For one thread or task."""

    def __init__(self, store: str, since: Since, partitions: Sequence[int] | None, retries: Retries) -> None:
        self._store = store
        self._since = since
        self._partitions = partitions
        self._last_id: str | None = None
        self._parser = EventParser()
        self._attempts = Attempts(retries)

    def request(self) -> Request:
        """The request that takes the feed up where it is."""
        self._last_id = self._parser.last_id or self._last_id
        self._parser = EventParser()
        return requests.changes(self._store, self._since, self._partitions, self._last_id)

    def connected(self) -> None:
        """Restart the time for retries: the server has begun to answer."""
        self._attempts.restart_clock()

    def read(self, chunk: bytes) -> Iterator[Change]:
        """The changes that these bytes complete, all of which have to be taken; then raises what the server says that
        the feed ends with, if it does.
        """
        for event in self._parser.feed(chunk):
            if event.type == "change":
                self._attempts.succeeded()
                yield self._change(event)
            elif event.type == "end":
                raise event_failure(event)

    def pause_s(self, failure: StatelineError | None, *, several: bool = False) -> float:
        """How long to wait before the feed is taken up again, after this failure or an end without a reason: no
        shorter than the server has asked for. `several`: there are several nodes.

        Raises the failure when it is no use to try again.
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
