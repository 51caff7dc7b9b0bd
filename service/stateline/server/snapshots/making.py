"""`Making`: one attempt to make a snapshot of what several nodes own.

All other nodes make their parts first, at the same time. The **keeper** is the owner whose name comes first. It makes
its part last, and writes down what the others have: from then on there is a snapshot. Two requests with the same pin
meet at the keeper, or at one of the others. A failed snapshot is given up everywhere, at the keeper first. While the
keeper may have finished it, the others keep their parts, for requests with the pin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from stateline.server.snapshots.asked_nodes import PART, AskedNodes, NodeRefusedError
from stateline.server.snapshots.own_parts import (
    Epoch,
    Made,
    OwnParts,
    Places,
    SnapshotRequest,
    of_one_epoch,
    read_epochs,
)
from stateline_store import CursorExpiredError, StatelineError
from stateline_store.snapshots.snapshot import PartsElsewhere, Snapshot

T = TypeVar("T")


class Making:
    """`places` are those of each node."""

    def __init__(self, own: OwnParts, nodes: AskedNodes, wanted: SnapshotRequest, places: Mapping[str, Places]) -> None:
        self._own, self._nodes, self._wanted = own, nodes, wanted
        self.keeper = min(places)
        self.id = nodes.new_id(self.keeper)
        # All reachable nodes remember a pin, so that none of them makes another snapshot for it.
        remembering = () if wanted.pin is None else (nodes.own, *nodes.linked)
        self._places: dict[str, Places] = {**{node: {} for node in remembering}, **places}
        self._may_be_kept = False

    async def make(self) -> Snapshot | None:
        """Return what the keeper has then. It has another id if the pin was taken. None if the parts are of different
        epochs.

        Raises like `OwnParts.make`, and `NodeRefusedError`.
        """
        others = [node for node in self._places if node != self.keeper]
        try:
            made = dict(zip(others, await all_of(self._of_other(node) for node in others), strict=True))
            taken = next((each.snapshot for each in made.values() if each and each.snapshot.id != self.id), None)
            if taken is None:
                last = await self._finished(made)
                if last is not None and last.id == self.id:
                    return last
                taken = last
        except BaseException:
            if others:
                await asyncio.shield(self._give_up(self.id, self.keeper if self._may_be_kept else None))
            raise
        await self._give_up(self.id, None)
        return taken

    async def give_up_left(self, snapshot_id: str) -> None:
        """Give up the rest of a snapshot of this pin that was never finished."""
        await self._give_up(snapshot_id, self._nodes.keeper(snapshot_id))

    async def _finished(self, made: Mapping[str, Made | None]) -> Snapshot | None:
        parts = {node: each for node, each in made.items() if each is not None}
        epochs = tuple(epoch for each in parts.values() for epoch in each.epochs)
        if not of_one_epoch(epochs):
            return None
        elsewhere = [PartsElsewhere(node, each.snapshot.parts) for node, each in parts.items()]
        self._may_be_kept = True
        last = await self._at(self.keeper, elsewhere, epochs)
        self._may_be_kept = False
        return None if last is None else last.snapshot

    async def _of_other(self, node: str) -> Made | None:
        """Return None if the node was only to remember the pin, and does not."""
        try:
            return await self._at(node)
        except (StatelineError, NodeRefusedError) as error:
            why = error.error if isinstance(error, NodeRefusedError) else error
            if self._places[node] or isinstance(why, CursorExpiredError):
                raise
            return None

    async def _at(
        self, node: str, elsewhere: Sequence[PartsElsewhere] = (), epochs: Sequence[Epoch] = ()
    ) -> Made | None:
        wanted, places = self._wanted, self._places[node]
        if node == self._nodes.own:
            return await self._own.make(self.id, wanted, places, elsewhere, epochs)
        members = {
            "places": places,
            "ttl_s": wanted.ttl_ms // 1000,
            "elsewhere": [each.to_json() for each in elsewhere],
            "epochs": epochs,
            **self._of_pin(),
        }
        told = await self._ask(node, self.id, "POST", members)
        if told is None:
            return None
        return Made(Snapshot.from_json(told["snapshot"]), read_epochs(told["epochs"]))

    async def _give_up(self, snapshot_id: str, keeper: str | None) -> None:
        """`keeper` is the node that may have finished it; None if no node may have."""

        async def at(node: str) -> None:
            if node == self._nodes.own:
                await self._own.give_up(snapshot_id, self._wanted.pin)
            else:
                await self._ask(node, snapshot_id, "DELETE", self._of_pin())

        if keeper is not None:
            try:
                await at(keeper)
            except (StatelineError, NodeRefusedError):
                return
        others = (node for node in self._places if node != keeper)
        await asyncio.gather(*map(at, others), return_exceptions=True)  # what stays goes when its lease ends

    def _of_pin(self) -> dict[str, Any]:
        pin = self._wanted.pin
        return {"stores": self._wanted.stores, "pin": None if pin is None else pin.text}

    async def _ask(self, node: str, snapshot_id: str, method: str, members: Mapping[str, Any]) -> Any:
        place = next(((store, some[0]) for store, some in self._places.get(node, {}).items()), None)
        return await self._nodes.ask(node, method, PART.format(id=snapshot_id), members, place)


async def all_of(asked: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results. Raises the first failure, after the last one has ended."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
