"""What the streams benchmark gives to operators of two streams or of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """`topics` has the records and keys of each input. `measured` are those whose records count. `between` are the
    internal topics, without the application's name, in the order in which they are worked off. `results` are topics."""

    topics: Mapping[str, tuple[int, int]]
    measured: Sequence[str]
    between: Sequence[str] = ()
    results: Sequence[str] = ()


_RECORDS, _KEYS = 300_000, 100_000
_CUSTOMERS = 10_000

OPERATORS = {
    "joined": Operator(
        {"events": (_RECORDS, _KEYS), "others": (_RECORDS, _KEYS)},
        ["events", "others"],
        results=["java-joined", "ours-joined"],
    ),
    "groupcount": Operator({"left": (_RECORDS, _KEYS)}, ["left"], ["by-end-repartition"]),
    "customers": Operator(
        {"left": (_RECORDS, _KEYS), "right": (2 * _CUSTOMERS, _CUSTOMERS)},
        ["left"],
        [f"customers-subscription-{kind}-topic" for kind in ("registration", "response")],
    ),
}
