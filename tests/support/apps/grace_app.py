"""The application of the tests that kill a worker while rows wait for a table, and what plain Python makes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stateline import App, serdes

GRACE_MS, HISTORY_MS = 100, 100_000
Given = tuple[str, str | None, int]  # key, value, timestamp
Left = tuple[bytes | None, bytes | None, int]


def pair(one: Any, other: Any) -> str:
    return f"{one}|{other}"


def build(**options: Any) -> App:
    """Trades with the rates of their time, to `rated`; rates may come late."""
    app = App("app")
    history, grace = timedelta(milliseconds=HISTORY_MS), timedelta(milliseconds=GRACE_MS)
    rates = app.table("rates", key=serdes.string, value=serdes.string, versioned=history)
    trades = app.stream("trades", key=serdes.string, value=serdes.string)
    trades.left_join(rates, pair, grace=grace, store="waiting", **options).to("rated")
    return app


app = build()


class Oracle:
    """The records of both topics, always the one with the smaller timestamp next, rates first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, str, int, str]] = []  # timestamp, key, number, value
        self.left: list[Left] = []
        self._rates: dict[str, dict[int, str | None]] = {}
        self._now_ms = self._number = -1

    def process(self, trades: list[Given], rates: list[Given]) -> None:
        trades, rates = list(trades), list(rates)
        while trades or rates:
            if rates and (not trades or rates[0][2] <= trades[0][2]):
                key, value, at = rates.pop(0)
                self._rates.setdefault(key, {})[at] = value
            else:
                self.trade(*trades.pop(0))

    def trade(self, key: str, value: str | None, at: int) -> None:
        if value is None:
            return
        if at < self._now_ms - GRACE_MS:
            self._join(at, key, value)
            return
        self._number += 1
        self._now_ms = max(self._now_ms, at)
        self.waiting = sorted([*self.waiting, (at, key, self._number, value)])
        while self.waiting and self.waiting[0][0] <= self._now_ms - GRACE_MS:
            first_ms, one, _, its = self.waiting.pop(0)
            self._join(first_ms, one, its)

    def _join(self, at: int, key: str, value: str) -> None:
        versions = self._rates.get(key, {})
        then = max((time for time in versions if time <= at), default=None)
        rate = None if then is None else versions[then]
        self.left.append((key.encode(), pair(value, rate).encode(), at))
