"""A handful of requests to look at, most of them while departures stream in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import httpx
import orjson

from flights.checks import Tally
from flights.loader import Feed
from flights.screen import Screen
from flights.shown import LastRequest
from flights.time_checks import left_at_ms
from stateline.client import Client, KeyAnswer
from stateline.client.requests import TimeArguments
from stateline.client.terms import TermArguments

_DIFFERENCE_TIMEOUT_S = 10.0
_WAIT_MS = 10_000
_TICK_S = 0.02

T = TypeVar("T")


class Replay:
    """Lets departures out at a rate. Call `tick` often; one thread."""

    def __init__(self, feed: Feed, per_second: int) -> None:
        self.feed = feed
        self._per_second = per_second
        self._since = time.monotonic()
        self._from = feed.sent

    def tick(self) -> None:
        """Write the departures that are due by now."""
        due = self._from + int((time.monotonic() - self._since) * self._per_second)
        if due > self.feed.sent and self.feed.waiting:
            self.feed.send(due - self.feed.sent)


class Tour:
    """Asks, shows request and answer, and counts the answers that it can judge by itself."""

    def __init__(self, url: str, screen: Screen, tally: Tally) -> None:
        self._last = LastRequest()
        # A proxy would not reach 127.0.0.1.
        self._http = httpx.Client(trust_env=False, event_hooks={"response": [self._last]})
        self._client = Client(url, http=self._http)
        self._screen = screen
        self._tally = tally

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def of_everything_loaded(self) -> None:
        """Every kind of query once."""
        self._screen.headline("What the stores say")
        store = self._client.store
        ask = self._ask
        latest = ask("the latest departure of an aircraft", lambda: store("aircraft").get("N725MQ"))
        ask("an airport's running totals", lambda: store("airport_totals").get("JFK"))
        first, last = "EWR|UA|2013-07-04T10:00Z", "EWR|UA|2013-07-04T14:00Z"
        ask("a range of what Spark computed", lambda: list(store("delays").range(lower=first, upper=last)))
        ask(
            "a prefix: the night of a blizzard",
            lambda: list(store("weather").range(prefix="JFK|2013-02-09T0", order="desc", limit=2)),
        )
        ask("several keys at once", lambda: store("airlines").get_many(["UA", "B6", "no such"]))
        self._windows_sessions_versions(latest)
        ask("how many there are, about", lambda: store("delays").count())

    def _windows_sessions_versions(self, departure: KeyAnswer | None) -> None:
        store = self._client.store
        afternoon = TimeArguments(
            time_from=datetime(2013, 2, 8, 18, tzinfo=UTC), time_to=datetime(2013, 2, 8, 20, tzinfo=UTC), order="asc"
        )
        self._ask(
            "windows: the hours in which the blizzard came",
            lambda: list(store("delay_windows").windows("JFK", **afternoon)),
        )
        week = TimeArguments(
            time_from=datetime(2013, 10, 28, tzinfo=UTC), time_to=datetime(2013, 11, 1, tzinfo=UTC), order="asc"
        )
        self._ask(
            "sessions: an aircraft's days, from its first departure to its last",
            lambda: list(store("aircraft_days").sessions("N725MQ", **week)),
        )
        if departure is not None and departure.found:
            left = departure.value
            self._ask(
                "versions: the weather when the departure above left",
                lambda: store("weather_as_of").get(left["origin"], as_of=left_at_ms(left)),
            )

    def both_isolation_levels(self, replay: Replay) -> None:
        """One key, at both levels, while its airport's departures stream in."""
        self._screen.headline("The same key at both isolation levels, while departures stream in")
        deadline = time.monotonic() + _DIFFERENCE_TIMEOUT_S
        totals = self._client.store("airport_totals")
        while True:
            replay.tick()
            # In this order uncommitted state can only be ahead.
            committed, said = totals.get("EWR", isolation_level="read_committed"), replace(self._last)
            uncommitted = totals.get("EWR", isolation_level="read_uncommitted")
            ahead = _departures(uncommitted) - _departures(committed)
            if ahead > 0 or time.monotonic() > deadline:
                break
            time.sleep(_TICK_S)
        self._tally.check("uncommitted is never behind committed", ahead >= 0, True)
        self._show("what the last commit made visible", said)
        self._show("what the worker has staged since is in it as well")
        self._screen.say(f"  {ahead} departures are not committed yet.")

    def read_after_write(self, feed: Feed) -> None:
        """A departure is written, and a committed read waits for it by the position of the write."""
        self._screen.headline("A write, and a read that waits for it")
        written = feed.next
        position = feed.send(1)
        self._screen.say(f"# wrote to the topic departures, key {written.key.decode()}: {written.value.decode()}")
        self._screen.say(f"# the log says where it stands: {orjson.dumps(position.to_json()).decode()}")
        terms = TermArguments(isolation_level="read_committed", bound=position, wait_ms=_WAIT_MS)
        started = time.monotonic()
        answer = self._client.store("aircraft").get(written.key.decode(), **terms)
        took_ms = (time.monotonic() - started) * 1000
        self._show("the read")
        self._screen.say(f"  It waited {took_ms:.0f} ms, until the worker had committed the departure.")
        self._tally.check("the read after the write", answer.value, orjson.loads(written.value))

    def _ask(self, what: str, request: Callable[[], T]) -> T | None:
        """What came back, which is shown; None where that was a refusal, which is counted."""
        answer = None
        with self._tally.asking(what):
            answer = request()
            self._tally.check(f"status of {self._last.curl}", self._last.status, 200)
        self._show(what)
        return answer

    def _show(self, what: str, request: LastRequest | None = None) -> None:
        shown = request or self._last
        self._screen.say(f"# {what}")
        self._screen.request(shown.curl, shown.answer)


def _departures(answer: KeyAnswer) -> int:
    return int(answer.value["departures"]) if answer.found else 0
