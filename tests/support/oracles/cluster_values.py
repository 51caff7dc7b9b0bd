"""What plain Python makes of the input in the stores of `nodes_app`, and what entries of an answer say of it: rows, by
what names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from support.apps.nodes_app import GAP_MS, SIZE_MS, starts_none
from support.oracles.history import History

Rows = dict[tuple[Any, ...], Any]

NAMES: Mapping[str, tuple[str, ...]] = {
    "counts": ("key",),
    "newest": ("key",),
    "windows": ("key", "start", "end"),
    "sessions": ("key", "start", "end"),
    "versions": ("key", "timestamp"),
    "latest": ("key", "timestamp"),
}
"""What names a row: of each store, and of `latest`, the newest versions of a versioned store's keys."""


class Expected:
    """`homes` has the partition of each key; a record's time is its value after `since_ms`."""

    def __init__(self, history: History, homes: Mapping[str, int], since_ms: int) -> None:
        self.history, self.homes, self._since_ms = history, homes, since_ms

    def rows(self, shape: str, keys: Collection[str], offsets: Mapping[int, int]) -> Rows:
        """Those of these keys, all of them if empty, in these partitions, each with its input up to an offset."""
        found: Rows = {}
        for key in keys or self.homes:
            home = self.homes[key]
            if home in offsets:
                for row, value in self._of_key(shape, home, key, offsets[home]):
                    found[key, *row] = value
        return found

    def _of_key(self, shape: str, home: int, key: str, offset: int) -> Iterable[tuple[tuple[int, ...], Any]]:
        if shape in ("counts", "newest"):
            newest = self.history.at(home, key.encode(), offset)
            return [] if newest is None else [((), newest[shape == "counts"])]
        came = {self._since_ms + value: n for value, n in self.history.came(home, key.encode(), offset).items()}
        return _SHAPES[shape](came)


def told(shape: str, entries: Iterable[Mapping[str, Any]], key: str | None = None) -> Rows:
    """Those of an answer; `key` is the one of all of them where they do not say it. None comes twice."""
    rows: Rows = {}
    for entry in entries:
        if entry.get("found", True):
            row = tuple(entry.get(name, key) for name in NAMES[shape])
            assert row not in rows, f"{row} comes twice"
            rows[row] = entry["value"]
    return rows


def _windows(came: Mapping[int, int]) -> Iterable[tuple[tuple[int, ...], int]]:
    counts: dict[int, int] = {}
    for at, n in came.items():
        counts[at - at % SIZE_MS] = counts.get(at - at % SIZE_MS, 0) + n
    return [((start, start + SIZE_MS), n) for start, n in counts.items()]


def _sessions(came: Mapping[int, int]) -> Iterable[tuple[tuple[int, ...], int]]:
    found: list[list[int]] = []
    for at, n in came.items():
        if starts_none(at):
            continue
        if found and at - found[-1][1] <= GAP_MS:
            found[-1][1:] = at, found[-1][2] + n
        else:
            found.append([at, at, n])
    return [((first, last), n) for first, last, n in found]


def _versions(came: Mapping[int, int]) -> Iterable[tuple[tuple[int, ...], int]]:
    return [((at,), n) for at, n in came.items()]


def _latest(came: Mapping[int, int]) -> Iterable[tuple[tuple[int, ...], int]]:
    return [((at,), came[at]) for at in [*came][-1:]]


_SHAPES: Mapping[str, Callable[[Mapping[int, int]], Iterable[tuple[tuple[int, ...], int]]]] = {
    "windows": _windows,
    "sessions": _sessions,
    "versions": _versions,
    "latest": _latest,
}
