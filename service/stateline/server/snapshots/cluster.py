"""`ClusterSnapshots`: snapshots of the whole application, whichever node is asked and whichever keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stateline.server.snapshots.asked_nodes import PART, TIMEOUT_S, AskedNodes, NodeRefusedError
from stateline.server.snapshots.making import Making, all_of
from stateline.server.snapshots.operations import PATH
from stateline.server.snapshots.own_parts import OwnParts, Places, SnapshotRequest
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore
from stateline_store import DoesNotExistError, NotActiveError, NotPresentError, NotReadyError, Position, StatelineError
from stateline_store.clock import now_ms
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.snapshot import PartsElsewhere, Snapshot

# Workers commit an epoch when each of them has come to its end.
_PATIENCE_S = 5.0
_PAUSE_S = 0.1
# After this long, parts of a snapshot that its keeper does not know are remains of a failed one.
_MADE_WITHIN_MS = int(3 * TIMEOUT_S * 1000)


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot as its keeper has it; `node` is the keeper's name."""

    node: str
    snapshot: Snapshot

    @property
    def nodes(self) -> list[PartsElsewhere]:
        """Return every node with a directory of it, the keeper first, with the parts there."""
        return [PartsElsewhere(self.node, self.snapshot.parts), *self.snapshot.elsewhere]

    @property
    def stores(self) -> dict[str, None]:
        """Return the names of its stores, in the order of its parts."""
        return dict.fromkeys(part.store for each in self.nodes for part in each.parts)


class ClusterSnapshots:
    """One per server process, for the event loop's thread."""

    def __init__(self, ownership: Ownership, own: OwnParts, nodes: AskedNodes) -> None:
        self._ownership, self.own, self.nodes = ownership, own, nodes

    async def create(self, stores: Sequence[ServedStore], wanted: SnapshotRequest) -> tuple[KeptSnapshot, bool]:
        """Return the snapshot, and whether it was made now. Otherwise it was made under this pin before.

        Raises like `OwnParts.make`, and `NodeRefusedError`.
        """
        known = await self.own.pinned(wanted.pin)
        if known is not None and (found := await self._finished(known)) is not None:
            return found, False
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            await self.own.look()
            making = Making(self.own, self.nodes, wanted, self._places(stores))
            made = await self._make(making)
            if made is not None and made.id == making.id:
                return KeptSnapshot(making.keeper, made), True
            if made is not None:
                if (found := await self._finished(made)) is not None:
                    return found, False
                if now_ms() < made.created_at_ms + _MADE_WITHIN_MS:
                    raise NotReadyError("The snapshot of this pin is being made: ask again in a moment.")
                await making.give_up_left(made.id)
            if asyncio.get_running_loop().time() >= deadline_s:
                raise NotReadyError(
                    "Partitions of several nodes are of different micro-batches, and are to be seen whole: no moment "
                    f"was found in {_PATIENCE_S:g} s in which all had committed the same one. Ask again in a moment."
                )
            await asyncio.sleep(_PAUSE_S)

    async def find(self, snapshot_id: str) -> KeptSnapshot:
        """Raises `DoesNotExistError` or `CursorExpiredError`, and `NotPresentError` or `NodeRefusedError` if its keeper
        cannot be asked."""
        keeper = self.nodes.keeper(snapshot_id)
        if keeper is None:
            if not self.nodes.may_have_left(snapshot_id):
                self.own.find(snapshot_id)  # what is known here is of a node that has left, and may come back
            raise NotPresentError(
                "The node that made this snapshot has left, or was not heard of yet: ask again when it is back."
            )
        if keeper == self.nodes.own:
            return KeptSnapshot(keeper, self.own.find(snapshot_id))
        told = await self.nodes.ask(keeper, "GET", PART.format(id=snapshot_id))
        return KeptSnapshot(keeper, Snapshot.from_json(told["snapshot"]))

    async def renew(self, found: KeptSnapshot, ttl_ms: int) -> KeptSnapshot:
        """Let all nodes keep it so long from now. If a node with a part cannot, its error is raised after all others
        have; its part goes when its lease ends."""

        async def at(each: PartsElsewhere) -> Snapshot:
            try:
                if each.node == self.nodes.own:
                    return await self.own.renew(found.snapshot.id, ttl_ms)
                path, members = PART.format(id=found.snapshot.id), {"ttl_s": ttl_ms // 1000}
                told = await self.nodes.ask(each.node, "PATCH", path, members, _a_place(each))
                return Snapshot.from_json(told["snapshot"])
            except (StatelineError, NodeRefusedError):
                if each.parts:
                    raise
                return found.snapshot  # it only remembers the pin

        renewed = await all_of(at(each) for each in found.nodes)
        return KeptSnapshot(found.node, renewed[0])

    async def release(self, found: KeptSnapshot) -> None:
        """Release it at all nodes, its keeper last. Parts of unreachable nodes go when their lease ends."""

        async def at(node: str) -> None:
            if node == self.nodes.own:
                await self.own.release(found.snapshot.id)
            else:
                await self.nodes.ask(node, "DELETE", PART.format(id=found.snapshot.id))

        await asyncio.gather(*(at(each.node) for each in found.snapshot.elsewhere), return_exceptions=True)
        await at(found.node)

    async def kept_here(self) -> list[KeptSnapshot]:
        """Return the snapshots that this node is the keeper of."""
        own = self.nodes.own
        return [KeptSnapshot(own, each) for each in await self.own.all() if self.nodes.keeper(each.id) == own]

    async def kept_elsewhere(self) -> list[Any]:
        """Return the snapshots that reachable nodes list."""
        asked = (self.nodes.ask(node, "GET", "/v1/snapshots") for node in self.nodes.linked)
        told = await asyncio.gather(*asked, return_exceptions=True)
        return [each for some in told if isinstance(some, dict) for each in some["snapshots"]]

    async def _finished(self, snapshot: Snapshot) -> KeptSnapshot | None:
        """Return what the keeper has; None if it is not made, or not yet."""
        try:
            return await self.find(snapshot.id)
        except DoesNotExistError:
            return None
        except NodeRefusedError as error:
            if isinstance(error.error, DoesNotExistError):
                return None
            raise

    async def _make(self, making: Making) -> Snapshot | None:
        try:
            return await making.make()
        except (NotActiveError, NotPresentError) as error:
            unreached = self.nodes.unreached
            if not unreached:
                raise
            owner = self.nodes.url(unreached[0]) if len(unreached) == 1 else None
            away = type(error)(f"{error} Not reached: {', '.join(unreached)}.")
            raise NodeRefusedError(away, owner) from error

    def nodes_of(self, stores: Sequence[ServedStore]) -> set[str]:
        """Return the names of the nodes that a snapshot of these stores would have parts at."""
        return set(self._places(stores))

    def _places(self, stores: Sequence[ServedStore]) -> dict[str, Places]:
        """Return what each node is asked for. Partitions without a known owner are this node's to refuse."""
        found: dict[str, dict[str, list[int]]] = {}
        for store in stores:
            for partition in store.partitions:
                task_id = store.placement.task_id(partition)
                owner = None if self._ownership.is_owned(task_id) else self.nodes.owner(task_id)
                here = found.setdefault(self.nodes.own if owner is None else owner, {})
                here.setdefault(store.name, []).append(partition)
        return dict(found)


def _a_place(parts: PartsElsewhere) -> tuple[str, int] | None:
    return (parts.parts[0].store, parts.parts[0].partition) if parts.parts else None


def described(found: KeptSnapshot, nodes: AskedNodes) -> dict[str, Any]:
    """Return the JSON of a snapshot. With several nodes, each part has its node and, if known, its URL. With one node
    clients use the path at the address that they know."""
    snapshot = found.snapshot
    stores: dict[str, dict[int, Any]] = {}
    position = Position()
    for each in found.nodes:
        for part in each.parts:
            position = position.merge(part.position)
            stores.setdefault(part.store, {})[part.partition] = _part(found, each.node, part, nodes)
    return {
        "id": snapshot.id,
        "created_at": snapshot.created_at_ms,
        "expires_at": snapshot.expires_at_ms,
        "position": position.to_json(),
        "stores": {store: {str(p): parts[p] for p in sorted(parts)} for store, parts in stores.items()},
    }


def _part(found: KeptSnapshot, node: str, part: CheckpointPart, nodes: AskedNodes) -> dict[str, Any]:
    path = f"{PATH}/{found.snapshot.id}/stores/{quote(part.store, safe='')}/partitions/{part.partition}"
    several: dict[str, str] = {}
    if nodes.shown is not None or found.snapshot.elsewhere:
        url = nodes.url(node)
        several = {"node": node} if url is None else {"node": node, "url": url + path}
    return {
        "path": path,
        **several,
        "position": part.position.to_json(),
        "commit": part.commit,
        "committed_at_ms": part.committed_at_ms,
    }
