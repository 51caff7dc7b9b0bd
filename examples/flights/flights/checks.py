"""Compares everything that the server answers with what the oracle says, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from flights.oracle import Answers, Value
from stateline.client import Client, Entry, Position, RequestError
from stateline.client.terms import TermArguments

_CHUNK = 5_000  # keys of one request; the server takes up to server.limit.max, 10,000
_LIMIT = 10_000
_ABSENT = "N0NESUCH"


@dataclass(slots=True)
class Tally:
    """How many answers were checked, and what was wrong with those that were."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def check(self, what: str, answered: object, expected: object) -> None:
        """Count one answer."""
        self.checked += 1
        if answered != expected:
            self.wrong.append(f"{what}: answered {answered!r}, expected {expected!r}")

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """What is refused inside counts as a wrong answer, and is no reason to stop."""
        try:
            yield
        except RequestError as error:
            self.check(what, str(error), "an answer")

    @property
    def verdict(self) -> str:
        """One line about all of them."""
        if not self.wrong:
            return f"checked {self.checked:,} answers, all right"
        return f"checked {self.checked:,} answers, {len(self.wrong):,} wrong"


def check_stores(client: Client, bounds: Mapping[str, Position], expected: Answers, tally: Tally) -> None:
    """Every key of `aircraft`, `airport_totals` and `delays`, by key and by range.

    `bounds` has the position that the answers of each of these stores must reflect.
    """
    times = expected.aircraft_times
    wanted: dict[str, Mapping[str, Value]] = {
        "aircraft": expected.aircraft,
        "airport_totals": expected.airport_totals,
        "delays": expected.delays,
    }
    for store, values in wanted.items():
        terms = at_least(bounds[store])
        check_keys(client, store, values, times if store == "aircraft" else {}, terms, tally)
        for prefix in sorted({_prefix(store, key) for key in values}):
            of_prefix = {key: value for key, value in values.items() if key.startswith(prefix)}
            with tally.asking(f"{store} {prefix}*"):
                answered = list(client.store(store).range(prefix=prefix, page_size=_LIMIT, **terms))
                check_range(f"{store} {prefix}*", answered, of_prefix, tally)


def at_least(position: Position) -> TermArguments:
    """The terms of a query whose answer must reflect this Position."""
    return {"bound": position, "wait_ms": 10_000, "isolation_level": "read_committed"}


def check_keys(
    client: Client,
    store: str,
    values: Mapping[str, Value],
    times: Mapping[str, int],
    terms: TermArguments,
    tally: Tally,
) -> None:
    """Every key and one that is absent; timestamps where `times` has them."""
    for keys in _chunks([*values, _ABSENT]):
        with tally.asking(f"{store} {keys[0]} …"):
            for entry in client.store(store).get_many(keys, **terms).entries:
                tally.check(f"{store} {entry.key}", entry.value if entry.found else None, values.get(entry.key))
                if entry.key in times:
                    tally.check(f"{store} {entry.key} timestamp", entry.timestamp, times[entry.key])


def check_range(what: str, entries: Sequence[Entry], values: Mapping[str, Value], tally: Tally) -> None:
    """Exactly these keys, in order, with these values."""
    tally.check(f"keys of {what}", [entry.key for entry in entries], sorted(values))
    for entry in entries:
        tally.check(f"{what} {entry.key}", entry.value, values.get(entry.key))


def _prefix(store: str, key: str) -> str:
    """A part of each store that fits an answer: of `delays` an airport's airline, of others a first letter or two."""
    return key[: key.rindex("|") + 1] if store == "delays" else key[:2]


def _chunks(keys: Sequence[str]) -> Iterable[list[str]]:
    rest = iter(keys)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
