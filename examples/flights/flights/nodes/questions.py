"""Questions at random, while departures stream in and nodes come and go, and what is right at each Position."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flights.checks import Tally, check_range
from flights.loader import DEPARTURE_PARTITIONS, DEPARTURES
from flights.oracle import Value
from stateline.client import Client, Position
from stateline.client.terms import TermArguments
from stateline.serde.partitioner import home_partition

_WAIT_MS = 100  # then it is asked again, and others meanwhile
_MANY = 20

Question = Callable[[Client], None]
"""Asks, and checks the answer; raises what the client raises."""


class Ledger:
    """The latest departure of each aircraft at any Position of their topic. It has no gaps: each partition's offsets
    count its departures."""

    def __init__(self, departures: Iterable[tuple[str, Value]]) -> None:
        """Tail number and value of each, in the order in which they are written."""
        self._written: dict[str, tuple[int, list[int], list[Value]]] = {}
        ends = [0] * DEPARTURE_PARTITIONS
        for tail, value in departures:
            home = home_partition(tail.encode(), DEPARTURE_PARTITIONS)
            _, offsets, values = self._written.setdefault(tail, (home, [], []))
            offsets.append(ends[home])
            values.append(value)
            ends[home] += 1

    @property
    def tails(self) -> Sequence[str]:
        """Every aircraft, in order."""
        return sorted(self._written)

    def latest(self, tail: str, position: Position) -> Value | None:
        """What a store at this Position has of an aircraft."""
        home, offsets, values = self._written[tail]
        reached = position.get(DEPARTURES, home)
        count = 0 if reached is None else bisect_right(offsets, reached)
        return values[count - 1] if count else None


@dataclass(frozen=True)
class Tables:
    """Those that do not change: key → value of each, and the Position of a store that has read it."""

    values: Mapping[str, Mapping[str, Value]]
    positions: Mapping[str, Position]

    @cached_property
    def keys(self) -> Mapping[str, Sequence[str]]:
        """Of each, in order."""
        return {name: sorted(values) for name, values in self.values.items()}


class Questions:
    """One thread's. What it has seen once is demanded of every later answer, whichever node gives it."""

    def __init__(
        self,
        ledger: Ledger,
        tables: Tables,
        written: Callable[[], Position],
        tally: Tally,
    ) -> None:
        """`written` says what of the departures is written by now."""
        self._ledger, self._tails = ledger, ledger.tails
        self._tables = tables
        self._written = written
        self._tally = tally
        self._random = random.Random()
        self._seen: dict[str, Position] = {}
        self._departed: dict[str, int] = {}

    def next(self) -> Question:
        """Another question, which may be asked again until it is answered."""
        pick = self._random.choice
        match pick(("aircraft", "aircraft", "written", "prefix", "totals", "key", "keys", "range")):
            case "aircraft":
                return self._aircraft(pick(self._tails), self._seen.get("aircraft", Position()))
            case "written":
                return self._aircraft(pick(self._tails), self._written())
            case "prefix":
                return self._prefix(pick(self._tails)[:4])
            case "totals":
                return self._totals(pick(("EWR", "JFK", "LGA")))
            case kind:
                return self._table(kind, pick(sorted(self._tables.keys)))

    def _aircraft(self, tail: str, bound: Position) -> Question:
        def ask(client: Client) -> None:
            answer = client.store("aircraft").get(tail, **_reflecting(bound))
            expected = self._ledger.latest(tail, answer.position)
            self._tally.check(f"aircraft {tail} at {answer.position}", answer.value if answer.found else None, expected)
            self._tally.check(f"Position of aircraft {tail}", _covers(answer.position, bound), True)
            self._saw("aircraft", answer.position)

        return ask

    def _prefix(self, prefix: str) -> Question:
        tails = [tail for tail in self._tails if tail.startswith(prefix)]

        def ask(client: Client) -> None:
            for page in client.store("aircraft").range(prefix=prefix, isolation_level="read_committed").pages():
                found = ((tail, self._ledger.latest(tail, page.position)) for tail in tails)
                expected = {tail: value for tail, value in found if value is not None}
                check_range(f"aircraft {prefix}*", page.entries, expected, self._tally)

        return ask

    def _totals(self, origin: str) -> Question:
        def ask(client: Client) -> None:
            bound = self._seen.get("airport_totals", Position())
            answer = client.store("airport_totals").get(origin, **_reflecting(bound))
            departed = answer.value["departures"] if answer.found else 0
            never_back = departed >= self._departed.get(origin, 0)
            self._tally.check(f"departures of {origin} never go back", never_back, True)
            self._departed[origin] = departed
            self._saw("airport_totals", answer.position)

        return ask

    def _table(self, kind: str, name: str) -> Question:
        keys, values = self._tables.keys[name], self._tables.values[name]
        key = self._random.choice(keys)
        some = self._random.sample(keys, min(_MANY, len(keys)))
        prefix = key[: max(2, len(key) - 2)]
        of_prefix = {each: values[each] for each in keys if each.startswith(prefix)}

        def ask(client: Client) -> None:
            # A node that has just got a partition says that it has not read all of it yet only if it is told how much.
            store = client.store(name, **_reflecting(self._tables.positions[name]))
            if kind == "key":
                self._tally.check(f"{name} {key}", store.get(key).value, values[key])
            elif kind == "keys":
                for entry in store.get_many(some).entries:
                    self._tally.check(f"{name} {entry.key}", entry.value, values[entry.key])
            else:
                check_range(f"{name} {prefix}*", list(store.range(prefix=prefix)), of_prefix, self._tally)

        return ask

    def _saw(self, store: str, position: Position) -> None:
        self._seen[store] = self._seen.get(store, Position()).merge(position)


def _reflecting(bound: Position) -> TermArguments:
    return {"bound": bound, "wait_ms": _WAIT_MS, "isolation_level": "read_committed"}


def _covers(position: Position, bound: Position) -> bool:
    """Of the partitions that the answer is from."""
    return all(offset >= (bound.get(*partition) or 0) for partition, offset in position)
