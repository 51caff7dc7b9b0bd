"""`OpenScans`: the scans that servers may read on, on the thread that owns the stores."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from stateline.query.open_scan import OpenScan
from stateline.query.values import Rows
from stateline.worker.query_connection import QueryConnection
from stateline_store import CursorExpiredError, StoreClosedError

# Of one partition of one store, so that a query takes one of each, however many partitions it is of. Each pins files,
# and what was staged when it began: the first write after it copies that.
MAX_OPEN_SCANS = 256
# Of the whole worker: what was staged when its scans began, each version of it once. Four times what may be staged.
MAX_PINNED_BYTES = 256 * 1024 * 1024

Place = tuple[str, int]
"""A store's name and a partition."""


class Pinned(NamedTuple):
    """A version of what is staged, which a scan keeps, and about how many bytes it has."""

    version: object
    size_bytes: int


class _Kept(NamedTuple):
    client: QueryConnection
    place: Place
    scan: OpenScan
    pinned: Pinned | None


class OpenScans:
    """Of all clients, the least recently used first. One that makes room for another is `CursorExpiredError` then: it
    is one of the client that has the most, so that no server ends what another one reads while it has fewer."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: dict[int, _Kept] = {}
        self._counts: Counter[Place] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: QueryConnection, place: Place, scan: OpenScan, pinned: Pinned | None = None) -> int:
        """Own this scan from now on; the number that this client knows it by."""
        number = next(self._numbers)
        self._kept[number] = _Kept(client, place, scan, pinned)
        self._counts[place] += 1
        if self._counts[place] > MAX_OPEN_SCANS:
            self._make_room([each for each, kept in self._kept.items() if kept.place == place])
        while pinned is not None and self.pinned_bytes > MAX_PINNED_BYTES and len(self._kept) > 1:
            self._make_room([each for each, kept in self._kept.items() if kept.pinned is not None])
        return number

    @property
    def pinned_bytes(self) -> int:
        """About how much of what was staged at some time is kept for scans."""
        versions = {id(pinned.version): pinned.size_bytes for *_, pinned in self._kept.values() if pinned is not None}
        return sum(versions.values())

    def more(self, client: QueryConnection, number: int, limit: int) -> Rows:
        """The next entries. Raises `CursorExpiredError` when the scan is gone."""
        kept = self._kept.get(number)
        if kept is None or kept.client is not client:
            raise CursorExpiredError("This worker keeps the scan no more: begin anew, without the cursor.")
        try:
            rows = kept.scan.rows(max(1, limit))
        except StoreClosedError as error:
            self._drop(number)
            raise CursorExpiredError("The worker closed the store that was scanned: begin anew.") from error
        except BaseException:
            self._drop(number)
            raise
        if rows.rest is None:
            self._drop(number)
        else:
            self._kept[number] = self._kept.pop(number)  # the last to make room
        return rows

    def drop(self, client: QueryConnection, number: object) -> None:
        """Let go of a scan that is not wanted any more; of one that is gone already nothing happens."""
        if isinstance(number, int) and (kept := self._kept.get(number)) is not None and kept.client is client:
            self._drop(number)

    def drop_all(self, client: QueryConnection) -> None:
        """This client is gone."""
        for number in [number for number, kept in self._kept.items() if kept.client is client]:
            self._drop(number)

    def _make_room(self, numbers: list[int]) -> None:
        """Drop one of these."""
        clients = {number: id(self._kept[number].client) for number in numbers}
        ((most, _),) = Counter(clients.values()).most_common(1)
        self._drop(next(number for number, client in clients.items() if client == most))

    def _drop(self, number: int) -> None:
        kept = self._kept.pop(number)
        self._counts[kept.place] -= 1
        if not self._counts[kept.place]:
            del self._counts[kept.place]
        kept.scan.close()
