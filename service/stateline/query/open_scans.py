"""`OpenScans`: scans that others read on: servers those of a worker, nodes those of another. For one thread."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from stateline_store import CursorExpiredError

# Of one partition of one store, so that a query takes one of each, however many partitions it is of. Each pins files,
# and what was staged when it began: the first write after it copies that.
MAX_OPEN_SCANS = 256
# Of all together: what was staged when their scans began, each version of it once. Four times what may be staged.
MAX_PINNED_BYTES = 256 * 1024 * 1024

Place = tuple[str, int]
"""A store's name and a partition."""


class Pinned(NamedTuple):
    """A version of what is staged, which a scan keeps, and about how many bytes it has."""

    version: object
    size_bytes: int


class Closing(Protocol):
    """A resource that can be released."""

    def close(self) -> None:
        """A second call does nothing."""


class Pinning(NamedTuple):
    """A scan or cursor that keeps files open: how many its owner has, since when this one exists (`time.monotonic`),
    and the function that ends it."""

    of_owner: int
    since_s: float
    close: Callable[[], None]


ScanT = TypeVar("ScanT", bound=Closing)


@dataclass(slots=True)
class KeptScan(Generic[ScanT]):
    """One of them. `wanted_at_s` is when its client last said that it wants it (`time.monotonic`)."""

    client: object
    place: Place
    scan: ScanT
    pinned: Pinned | None
    opened_at_s: float = field(default_factory=time.monotonic)
    wanted_at_s: float = field(default_factory=time.monotonic)


class OpenScans(Generic[ScanT]):
    """The scans of all clients, the least recently used first. If there are too many, a scan of the client with the
    most is closed, and raises `CursorExpiredError` afterwards. So no client ends a scan of a client that has fewer."""

    def __init__(self) -> None:
        # Random, so that no scan of another process has the same number: a client may read from two of them.
        self._numbers = itertools.count(1 + secrets.randbits(48))
        self.kept: dict[int, KeptScan[ScanT]] = {}
        self._counts: Counter[Place] = Counter()

    def __len__(self) -> int:
        return len(self.kept)

    def keep(self, client: object, place: Place, scan: ScanT, pinned: Pinned | None = None) -> int:
        """Own this scan from now on; the number that this client knows it by."""
        number = next(self._numbers)
        self.kept[number] = KeptScan(client, place, scan, pinned)
        self._counts[place] += 1
        if self._counts[place] > MAX_OPEN_SCANS:
            self._make_room([each for each, kept in self.kept.items() if kept.place == place])
        while pinned is not None and self.pinned_bytes > MAX_PINNED_BYTES and len(self.kept) > 1:
            self._make_room([each for each, kept in self.kept.items() if kept.pinned is not None])
        return number

    @property
    def pinned_bytes(self) -> int:
        """About how much of what was staged at some time is kept for scans."""
        pins = (kept.pinned for kept in self.kept.values() if kept.pinned is not None)
        return sum({id(pinned.version): pinned.size_bytes for pinned in pins}.values())

    def used(self, client: object, number: int) -> KeptScan[ScanT]:
        """The one of this number, which is the last to make room now. Raises `CursorExpiredError` when it is gone."""
        kept = self._of(client, number)
        if kept is None:
            raise CursorExpiredError("The scan is not kept any more. Start over, without the cursor.")
        self.kept[number] = self.kept.pop(number)
        kept.wanted_at_s = time.monotonic()
        return kept

    def hold(self, client: object, numbers: Iterable[object]) -> None:
        """This client wants these still, also if it reads them later."""
        for number in numbers:
            if (kept := self._of(client, number)) is not None:
                kept.wanted_at_s = time.monotonic()

    def replace(self, client: object, number: int, scan: ScanT) -> None:
        """This is what is left of the one of this number. Raises as `used`; then it is closed."""
        kept = self._of(client, number)
        if kept is None:
            scan.close()
            self.used(client, number)
        else:
            kept.scan = scan

    def drop(self, client: object, number: object) -> None:
        """Close a scan that is not wanted any more. If it is gone already, nothing happens."""
        if isinstance(number, int) and self._of(client, number) is not None:
            self._drop(number)

    def drop_all(self, client: object) -> None:
        """This client is gone."""
        for number in [number for number, kept in self.kept.items() if kept.client is client]:
            self._drop(number)

    def expire(self, unused_s: float) -> None:
        """Close each scan that nobody has wanted for so long."""
        since_s = time.monotonic() - unused_s
        for number in [number for number, kept in self.kept.items() if kept.wanted_at_s < since_s]:
            self._drop(number)

    def pinning(self) -> list[Pinning]:
        """Each of them; a client has as many as of the partition of which it has the most."""
        places = Counter((id(kept.client), kept.place) for kept in self.kept.values())
        most: dict[int, int] = {}
        for (client, _), count in places.items():
            most[client] = max(count, most.get(client, 0))
        return [
            Pinning(most[id(kept.client)], kept.opened_at_s, partial(self._drop, number))
            for number, kept in self.kept.items()
        ]

    def _of(self, client: object, number: object) -> KeptScan[ScanT] | None:
        kept = self.kept.get(number) if isinstance(number, int) else None
        return kept if kept is not None and kept.client is client else None

    def _make_room(self, numbers: list[int]) -> None:
        """Drop one of these."""
        clients = {number: id(self.kept[number].client) for number in numbers}
        ((most, _),) = Counter(clients.values()).most_common(1)
        self._drop(next(number for number, client in clients.items() if client == most))

    def _drop(self, number: int) -> None:
        kept = self.kept.pop(number)
        self._counts[kept.place] -= 1
        if not self._counts[kept.place]:
            del self._counts[kept.place]
        kept.scan.close()
