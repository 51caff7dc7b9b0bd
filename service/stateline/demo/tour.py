"""A handful of requests to look at, most of them while departures stream in."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import orjson

from stateline.client import Client, KeyAnswer
from stateline.client.terms import TermArguments
from stateline.demo.checks import Tally
from stateline.demo.loader import Feed
from stateline.demo.screen import Screen
from stateline.demo.shown import LastRequest
from stateline.demo.time_checks import left_at_ms

_DIFFERENCE_TIMEOUT_S = 10.0
_WAIT_MS = 10_000
_TICK_S = 0.02


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
        latest = store("aircraft").get("N725MQ")
        self._show("the latest departure of an aircraft")
        store("airport_totals").get("JFK")
        self._show("an airport's running totals")
        list(store("delays").range(lower="EWR|UA|2013-07-04T10:00Z", upper="EWR|UA|2013-07-04T14:00Z"))
        self._show("a range of what Spark computed")
        list(store("weather").range(prefix="JFK|2013-02-09T0", order="desc", limit=2))
        self._show("a prefix: the night of a blizzard")
        store("airlines").get_many(["UA", "B6", "no such"])
        self._show("several keys at once")
        self._windows_sessions_versions(latest)
        store("delays").count()
        self._show("how many there are, about")

    def _windows_sessions_versions(self, departure: KeyAnswer) -> None:
        store = self._client.store
        afternoon = [datetime(2013, 2, 8, hour, tzinfo=UTC) for hour in (18, 20)]
        list(store("delay_windows").windows("JFK", time_from=afternoon[0], time_to=afternoon[1], order="asc"))
        self._show("windows: the hours in which the blizzard came")
        week = [datetime(2013, 10, 28, tzinfo=UTC), datetime(2013, 11, 1, tzinfo=UTC)]
        list(store("aircraft_days").sessions("N725MQ", time_from=week[0], time_to=week[1], order="asc"))
        self._show("sessions: an aircraft's days, from its first departure to its last")
        if departure.found:
            store("weather_as_of").get(departure.value["origin"], as_of=left_at_ms(departure.value))
            self._show("versions: the weather when the departure above left")

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

    def _show(self, what: str, request: LastRequest | None = None) -> None:
        shown = request or self._last
        self._screen.say(f"# {what}")
        self._screen.request(shown.curl, shown.answer)
        self._tally.check(f"status of {shown.curl}", shown.status, 200)


def _departures(answer: KeyAnswer) -> int:
    return int(answer.value["departures"]) if answer.found else 0
