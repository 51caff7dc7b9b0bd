"""A handful of requests to look at, most of them while departures stream in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from stateline.demo.checks import Tally
from stateline.demo.client import Answer, Client
from stateline.demo.loader import Feed
from stateline.demo.screen import Screen
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

    def __init__(self, client: Client, screen: Screen, tally: Tally) -> None:
        self._client = client
        self._screen = screen
        self._tally = tally

    def of_everything_loaded(self) -> None:
        """Every kind of query once."""
        self._screen.headline("What the stores say")
        client = self._client
        latest = client.key("aircraft", "N725MQ")
        self._show("the latest departure of an aircraft", latest)
        self._show("an airport's running totals", client.key("airport_totals", "JFK"))
        hours = {"lower": "EWR|UA|2013-07-04T10:00Z", "upper": "EWR|UA|2013-07-04T14:00Z"}
        self._show("a range of what Spark computed", client.get("/v1/stores/delays/range", hours))
        night = {"prefix": "JFK|2013-02-09T0", "order": "desc", "limit": 2}
        self._show("a prefix: the night of a blizzard", client.get("/v1/stores/weather/range", night))
        keys = {"type": "keys", "keys": ["UA", "B6", "no such"]}
        self._show("several keys at once", client.query("airlines", keys))
        self._windows_sessions_versions(latest.body.get("value") or {})
        self._show("how many there are, about", client.get("/v1/stores/delays/count"))

    def _windows_sessions_versions(self, departure: Mapping[str, Any]) -> None:
        client = self._client
        afternoon = {"from": "2013-02-08T18:00Z", "to": "2013-02-08T20:00Z", "order": "asc"}
        windows = client.get("/v1/stores/delay_windows/keys/JFK/windows", afternoon)
        self._show("windows: the hours in which the blizzard came", windows)
        week = {"from": "2013-10-28T00:00Z", "to": "2013-11-01T00:00Z", "order": "asc"}
        days = client.get("/v1/stores/aircraft_days/keys/N725MQ/sessions", week)
        self._show("sessions: an aircraft's days, from its first departure to its last", days)
        if departure:
            left = datetime.fromtimestamp(left_at_ms(departure) / 1000, UTC)
            as_of = {"as_of": left.strftime("%Y-%m-%dT%H:%M:%SZ")}
            weather = client.key("weather_as_of", departure["origin"], as_of)
            self._show("versions: the weather when the departure above left", weather)

    def both_isolation_levels(self, replay: Replay) -> None:
        """One key, at both levels, while its airport's departures stream in."""
        self._screen.headline("The same key at both isolation levels, while departures stream in")
        deadline = time.monotonic() + _DIFFERENCE_TIMEOUT_S
        while True:
            replay.tick()
            # In this order uncommitted state can only be ahead.
            committed, uncommitted = (
                self._client.key("airport_totals", "EWR", {"isolation_level": level})
                for level in ("read_committed", "read_uncommitted")
            )
            ahead = _departures(uncommitted) - _departures(committed)
            if ahead > 0 or time.monotonic() > deadline:
                break
            time.sleep(_TICK_S)
        self._tally.check("uncommitted is never behind committed", ahead >= 0, True)
        self._show("what the last commit made visible", committed)
        self._show("what the worker has staged since is in it as well", uncommitted)
        self._screen.say(f"  {ahead} departures are not committed yet.")

    def read_after_write(self, feed: Feed) -> None:
        """A departure is written, and a committed read waits for it by the position of the write."""
        self._screen.headline("A write, and a read that waits for it")
        written = feed.next
        position = feed.send(1)
        self._screen.say(f"# wrote to the topic departures, key {written.key.decode()}: {written.value.decode()}")
        self._screen.say(f"# the log says where it stands: {orjson.dumps(position.to_json()).decode()}")
        level = {"isolation_level": "read_committed"}
        bound = {"position_bound": position.to_json(), "wait_ms": _WAIT_MS}
        started = time.monotonic()
        answer = self._client.key("aircraft", written.key.decode(), {**level, **bound})
        took_ms = (time.monotonic() - started) * 1000
        self._show("the read", answer)
        self._screen.say(f"  It waited {took_ms:.0f} ms, until the worker had committed the departure.")
        self._tally.check("the read after the write", answer.body.get("value"), orjson.loads(written.value))

    def _show(self, what: str, answer: Answer) -> None:
        self._screen.say(f"# {what}")
        self._screen.request(answer.curl, answer.shown)
        self._tally.check(f"status of {answer.curl}", answer.status, 200)


def _departures(answer: Answer) -> int:
    value: dict[str, Any] = answer.body.get("value") or {}
    return int(value.get("departures", 0))
