"""`OwnParts`: this node's parts of snapshots.

The workers link their stores' files into the state directory (`worker.queries.snapshots`), each between two of its
commits. The server asks them, and writes the manifest with the lease when all have answered. So every server process of
the node knows each of its snapshots, and a restart loses none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateline.config.settings import Config
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.workers import Workers
from stateline_store.clock import now_ms
from stateline_store.snapshots.snapshot import CallerShare, PartsElsewhere, Pin, Snapshot
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory

Places = Mapping[str, Sequence[int]]
"""Store → partitions."""
Epoch = tuple[str, int, int]
"""Topic and partition of a pipeline's markers, and the number of the epoch that a part is of."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for a snapshot. `stores` are all of it, on all nodes. `owner` is the name of the token. `caller` is
    counted for it; None if another node has counted it."""

    stores: tuple[str, ...]
    ttl_ms: int
    owner: str | None = None
    caller: str | None = None
    pin: Pin | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """One node's part of a snapshot. It has another id if the pin was taken already."""

    snapshot: Snapshot
    epochs: tuple[Epoch, ...] = ()


class OwnParts:
    """One per server process, for the event loop's thread."""

    def __init__(
        self, config: Config, stores: ServedStores, workers: Workers, ownership: Ownership, directory: SnapshotDirectory
    ) -> None:
        self._stores, self._workers, self._ownership, self._directory = stores, workers, ownership, directory
        self._most, self._most_bytes = config.server_snapshots_max, config.server_snapshots_max_bytes
        self._share = config.caller_share(self._most)

    async def look(self) -> None:
        """Find the workers, and the owner of each task."""
        await self._workers.refresh()
        await self._ownership.settle()

    async def make(
        self,
        snapshot_id: str,
        wanted: SnapshotRequest,
        places: Places,
        elsewhere: Sequence[PartsElsewhere] = (),
        epochs: Iterable[Epoch] = (),
    ) -> Made | None:
        """Make these parts; `look` comes before. Return None if they are not of `epochs`, those of the parts elsewhere.

        Raises `NotPresentError` for a partition that no worker here has, `NotActiveError` for one that another machine
        may have, `NotReadyError` while it cannot be made, `TooManyRequestsError`, and `CursorExpiredError` if the pin's
        snapshot is gone.
        """
        by_worker = self._by_worker(places)
        share = None if wanted.caller is None else CallerShare(wanted.caller, self._share)
        limits = (self._most, self._most_bytes, share)
        unfinished = await asyncio.to_thread(self._directory.begin, now_ms(), *limits, snapshot_id)
        try:
            asked = (self._workers.snapshot(worker, unfinished.id, each) for worker, each in by_worker.items())
            linked = await asyncio.gather(*asked)
            numbers = tuple(number for each in linked for number in each.epochs)
            if any(each.parts for each in elsewhere) and not of_one_epoch([*numbers, *epochs]):
                return None
            parts = [part for each in linked for part in each.parts]
            now = now_ms()
            lease = (now, now + wanted.ttl_ms)
            finished = await asyncio.to_thread(
                self._directory.finish, unfinished, parts, *lease, wanted.owner, wanted.pin, elsewhere
            )
            return Made(finished, numbers)
        finally:
            unfinished.close()  # one that was not finished is swept

    async def give_up(self, snapshot_id: str, pin: Pin | None) -> None:
        await asyncio.to_thread(self._directory.give_up, snapshot_id, pin)

    async def pinned(self, pin: Pin | None) -> Snapshot | None:
        return None if pin is None else await asyncio.to_thread(self._directory.pinned, pin, now_ms())

    def find(self, snapshot_id: str) -> Snapshot:
        return self._directory.find(snapshot_id, now_ms())

    async def all(self) -> list[Snapshot]:
        return await asyncio.to_thread(self._directory.all, now_ms())

    async def renew(self, snapshot_id: str, ttl_ms: int) -> Snapshot:
        now = now_ms()
        return await asyncio.to_thread(self._directory.renew, snapshot_id, now, now + ttl_ms, self._most_bytes)

    async def release(self, snapshot_id: str) -> None:
        await asyncio.to_thread(self._directory.release, snapshot_id, now_ms())

    def _by_worker(self, places: Places) -> dict[str | None, list[tuple[str, int]]]:
        found: dict[str | None, list[tuple[str, int]]] = {}
        for name, partitions in places.items():
            store = self._stores.get(name)
            for partition in partitions:
                task_id = store.placement.task_id(partition)
                self._ownership.check(task_id, name, partition)
                found.setdefault(self._workers.owner(task_id), []).append((name, partition))
        return found


def read_epochs(told: Iterable[Any]) -> tuple[Epoch, ...]:
    """Read epochs from JSON. Raises `TypeError` or `ValueError` for anything else."""
    return tuple((str(topic), int(partition), int(number)) for topic, partition, number in told)


def of_one_epoch(epochs: Iterable[Epoch]) -> bool:
    """Return whether no pipeline's markers have two numbers."""
    seen: dict[tuple[str, int], int] = {}
    return all(seen.setdefault((topic, partition), number) == number for topic, partition, number in epochs)
