"""Requests between nodes for a snapshot. Each node answers for its own part, and answers only nodes.

POST   /v1/snapshots/{id}/part   {"places": {store: [partition …]}, "stores": all of the snapshot, "ttl_s", "pin",
                                  "elsewhere": what other nodes have made, "epochs": of which epochs that is}
                                 201 {"snapshot": manifest, "epochs"}; 409: the parts here are of other epochs
GET                              {"snapshot": manifest}
PATCH                            {"ttl_s"}: as GET
DELETE                           204; with {"pin", "stores"} it is given up, as if it had never been
POST   /v1/snapshots/{id}/part/rows   {"store", "wanted": a `RowSelection`}
                                 200, the rows of this store in all parts here, as an Arrow stream
"""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext, suppress
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.rows.selection import RowSelection
from stateline.server.contract.answers import json_response
from stateline.server.contract.formats import ARROW
from stateline.server.guard.caller import name_of, require_owner, require_read
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.relay.large_reads import LargeReads, note_body
from stateline.server.rows.streams import OwningStream
from stateline.server.snapshots.asked_nodes import OTHER_EPOCHS, PART, PART_ROWS
from stateline.server.snapshots.own_parts import OwnParts, SnapshotRequest, read_epochs
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.state.served_stores import ServedStores
from stateline.server.wire.loading import loaded
from stateline_store import DoesNotExistError, InvalidArgumentError
from stateline_store.snapshots.snapshot import PartsElsewhere, Pin, Snapshot
from stateline_store.snapshots.snapshot_directory import is_snapshot_id


class PartRoutes:
    """The endpoint. One per server process, for the event loop's thread. No lease is longer than `longest_s`."""

    def __init__(
        self, own: OwnParts, sweeper: SnapshotSweeper, longest_s: int, stores: ServedStores, large: LargeReads,
        patience_s: float,
    ) -> None:  # fmt: skip
        self._own, self._sweeper, self._longest_s = own, sweeper, longest_s
        self._stores, self._large, self._patience_s = stores, large, patience_s

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PART, self._answer, methods=["GET", "POST", "PATCH", "DELETE"]),
            Route(PART_ROWS, self._answer, methods=["POST"]),
        ]

    async def _answer(self, request: Request) -> Response:
        if not came_over_link(request):
            raise HTTPException(404)
        body = await request.body()
        try:
            members = orjson.loads(body) if body else {}
            if request.url.path.endswith("/rows"):
                note_body(request, body)
                return await self._rows(request, str(members["store"]), RowSelection.from_json(members["wanted"]))
            match request.method:
                case "POST":
                    return await self._make(request, members)
                case "PATCH":
                    return await self._renew(request, members)
                case "DELETE":
                    return await self._release(request, members)
            return _told(self._found(request))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"Not what nodes ask of each other: {error!r}") from error

    async def _make(self, request: Request, members: dict[str, Any]) -> Response:
        stores = tuple(map(str, members["stores"]))
        require_read(request, stores)
        wanted = SnapshotRequest(stores, self._ttl_ms(members), name_of(request), pin=_pin(request, members))
        places = {str(store): [int(p) for p in some] for store, some in members["places"].items()}
        elsewhere = [PartsElsewhere.from_json(each) for each in members["elsewhere"]]
        await self._own.look()
        made = await self._own.make(_id(request), wanted, places, elsewhere, read_epochs(members["epochs"]))
        if made is None:
            return Response(status_code=OTHER_EPOCHS)
        return json_response({"snapshot": made.snapshot.to_json(), "epochs": made.epochs}, 201)

    async def _renew(self, request: Request, members: dict[str, Any]) -> Response:
        require_owner(request, self._found(request).owner)
        return _told(await self._own.renew(_id(request), self._ttl_ms(members)))

    async def _release(self, request: Request, members: dict[str, Any]) -> Response:
        with suppress(DoesNotExistError) if members else nullcontext():  # what is being made may be given up as well
            require_owner(request, self._found(request).owner)
        if members:
            await self._own.give_up(_id(request), _pin(request, members))
        else:
            await self._own.release(_id(request))
        self._sweeper.close_released()
        return Response(status_code=204)

    async def _rows(self, request: Request, name: str, wanted: RowSelection) -> Response:
        require_read(request, (name,))  # nobody gets rows of the snapshot's other stores
        if (answer := await self._large.answer(request)) is not None:
            return answer
        snapshot, definition = self._own.find(_id(request)), self._stores.get(name).definition
        parts = [part for part in snapshot.parts if part.store == name]
        await loaded("stateline.server.snapshots.part_rows")
        from stateline.server.snapshots.part_rows import rows_of_parts, stream_of

        async with AsyncExitStack() as resources:
            rows = rows_of_parts(self._sweeper.checkpoints, snapshot.id, parts, definition, wanted)
            resources.push_async_callback(rows.aclose)
            first = await anext(rows, None)  # before the answer begins, so that a refusal has its status
            chunks = stream_of(definition, wanted, first, rows)
            return OwningStream(chunks, resources.pop_all(), self._patience_s, ARROW, {})

    def _found(self, request: Request) -> Snapshot:
        snapshot = self._own.find(_id(request))
        parts = [*snapshot.parts, *(part for each in snapshot.elsewhere for part in each.parts)]
        require_read(request, dict.fromkeys(part.store for part in parts))
        return snapshot

    def _ttl_ms(self, members: dict[str, Any]) -> int:
        ttl_s = int(members["ttl_s"])
        if not 1 <= ttl_s <= self._longest_s:
            raise InvalidArgumentError(
                f"ttl_s={ttl_s} is out of range: 1 to {self._longest_s} (server.snapshot.ttl.max.ms) is accepted."
            )
        return ttl_s * 1000


def _id(request: Request) -> str:
    snapshot_id: str = request.path_params["id"]
    if not is_snapshot_id(snapshot_id):
        raise ValueError(f"{snapshot_id!r:.100} is no id of a snapshot")
    return snapshot_id


def _pin(request: Request, members: dict[str, Any]) -> Pin | None:
    text = members["pin"]
    return None if text is None else Pin(str(text), name_of(request), frozenset(map(str, members["stores"])))


def _told(snapshot: Snapshot) -> Response:
    return json_response({"snapshot": snapshot.to_json()})
