"""`/v1/snapshots`: made, described, renewed, released and read as Arrow.

The workers link their stores' files into the state directory (`stateline.worker.snapshots`), each between two of its
commits; the server asks them, and writes the manifest with the lease when all have answered. So every server process of
the machine knows every snapshot, and a restart loses none. One server at a time sweeps those whose lease has ended.

    POST  {"stores": [name …], "ttl_s": seconds,
           "pin": text}                              201, and as GET; 200 with the one that this pin has already made
    GET   {"id", "created_at", "expires_at", "position", "stores": {store: {partition:
           {"path", "position", "commit", "committed_at_ms"}}}}       times in ms since the epoch
    PATCH {"ttl_s": seconds from now}                200, and as GET
    DELETE                                           204
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, closing
from typing import Any
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.model.store_definition import StoreDefinition
from stateline.serde.plain import JsonSerde, shown
from stateline.server.contract.answers import head_response, json_response
from stateline.server.contract.arguments import Arguments, refuse_parameters
from stateline.server.contract.written_arguments import from_body, from_query_string
from stateline.server.guard.caller import caller_of, may_read, name_of, require_owner, require_read
from stateline.server.guard.limits import Limits
from stateline.server.rows.columns import MEDIA_TYPE, STREAM_END
from stateline.server.rows.streams import OwningStream
from stateline.server.serving import Serving
from stateline.server.snapshots.filter import RowSelection, read_selected_keys, read_selection
from stateline.server.snapshots.keeper import SnapshotKeeper
from stateline.server.snapshots.operations import ONE, PATH, ROWS
from stateline.server.state.served_stores import ServedStore
from stateline.server.wire.loading import loaded
from stateline_store import CursorExpiredError, DoesNotExistError, InvalidArgumentError, Position
from stateline_store.checkpoints import Checkpoint, CheckpointPart
from stateline_store.clock import now_ms
from stateline_store.snapshot import Pin, Share, Snapshot

DEFAULT_TTL_S = 300
MAX_BODY_BYTES = 1024 * 1024
MAX_STORES = 1000
MAX_PIN = 64  # characters


def _by_method(path: str, handlers: Mapping[str, Callable[[Request], Awaitable[Response]]]) -> Route:
    """One route, so that a method which it does not take is answered with all that it does (`Allow`)."""

    async def handle(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        return await handler(request)

    return Route(path, handle, methods=list(handlers))


class SnapshotRoutes:
    """The endpoints; one per server process, for the event loop's thread."""

    def __init__(self, serving: Serving, keeper: SnapshotKeeper, limits: Limits) -> None:
        self._serving, self._limits = serving, limits
        config = serving.config
        self._most, self._most_bytes = config.server_snapshots_max, config.server_snapshots_max_bytes
        self._most_keys = config.server_limit_max
        self._longest_s = max(1, config.server_snapshot_ttl_max_ms // 1000)
        self._directory, self._checkpoints = keeper.directory, keeper.checkpoints
        self._keeper = keeper

    def routes(self) -> list[BaseRoute]:
        """What to mount."""
        return [
            _by_method(PATH, {"GET": self.all, "POST": self.create}),
            _by_method(ONE, {"GET": self.show, "PATCH": self.renew, "DELETE": self.release}),
            _by_method(ROWS, {"GET": self.rows, "POST": self.rows_of_keys}),
        ]

    async def create(self, request: Request) -> Response:
        """POST /v1/snapshots: one of these stores, all their partitions."""
        refuse_parameters(request)
        arguments = await self._body(request, ("stores", "ttl_s", "pin"))
        names = arguments.texts("stores", MAX_STORES)
        require_read(request, names)
        stores = [self._persistent(name) for name in names]
        owner, ttl_ms = name_of(request), self._ttl_ms(arguments)
        pin = _pin(arguments, owner, names)
        snapshot = await asyncio.to_thread(self._directory.pinned, pin, now_ms()) if pin is not None else None
        is_new = snapshot is None
        if snapshot is None:
            snapshot = await self._make(stores, ttl_ms, owner, caller_of(request), pin)
        response = json_response(described(snapshot), 201 if is_new else 200)
        response.headers["Location"] = f"{PATH}/{snapshot.id}"
        return response

    async def all(self, request: Request) -> Response:
        """GET /v1/snapshots: those that there are, of stores that who asks may read."""
        refuse_parameters(request)
        found = await asyncio.to_thread(self._directory.all, now_ms())
        shown = [each for each in found if all(may_read(request, part.store) for part in each.parts)]
        return json_response({"snapshots": [described(each) for each in shown]})

    async def show(self, request: Request) -> Response:
        """GET /v1/snapshots/{id}: what it has, and until when."""
        refuse_parameters(request)
        return json_response(described(self._found(request)))

    async def renew(self, request: Request) -> Response:
        """PATCH /v1/snapshots/{id}: let its lease end so long from now."""
        refuse_parameters(request)
        ttl_ms = self._ttl_ms(await self._body(request, ("ttl_s",)))
        snapshot, now = self._own(request), now_ms()
        until_ms = now + ttl_ms
        renewed = await asyncio.to_thread(self._directory.renew, snapshot.id, now, until_ms, self._most_bytes)
        return json_response(described(renewed))

    async def release(self, request: Request) -> Response:
        """DELETE /v1/snapshots/{id}: who reads it reads on."""
        refuse_parameters(request)
        snapshot = self._own(request)
        await asyncio.to_thread(self._directory.release, snapshot.id, now_ms())
        self._keeper.close_released()
        return Response(status_code=204)

    async def rows(self, request: Request) -> Response:
        """GET …/stores/{store}/partitions/{partition}: the rows, as an Arrow stream."""
        snapshot, part, definition = self._part(request)
        wanted = read_selection(Arguments(from_query_string(request.scope["query_string"])), definition)
        if request.method == "HEAD":
            return head_response(MEDIA_TYPE, _headers(part))
        return await self._rows(snapshot, part, definition, wanted)

    async def rows_of_keys(self, request: Request) -> Response:
        """POST …/stores/{store}/partitions/{partition}: the rows of the keys that the body names."""
        refuse_parameters(request)
        snapshot, part, definition = self._part(request)

        def parse(body: bytes) -> tuple[RowSelection, int]:
            arguments = Arguments(from_body(body, keep_text=isinstance(definition.key, JsonSerde)))
            return read_selected_keys(arguments, definition, self._most_keys), arguments.key_bytes

        async with self._serving.bodies.read(request, parse) as wanted:
            return await self._rows(snapshot, part, definition, wanted)

    def _part(self, request: Request) -> tuple[Snapshot, CheckpointPart, StoreDefinition]:
        snapshot, name = self._found(request), request.path_params["store"]
        part = snapshot.part(name, _partition(request.path_params["partition"]))
        definition = self._serving.topology.stores.get(name)
        if definition is None:
            raise DoesNotExistError(f"The application has no store {shown(name)} any more.")
        return snapshot, part, definition

    async def _rows(
        self, snapshot: Snapshot, part: CheckpointPart, definition: StoreDefinition, wanted: RowSelection
    ) -> Response:
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(self._limits.scan())
            checkpoint = await self._checkpoints.acquire(snapshot.id, part)
            resources.callback(self._checkpoints.release, snapshot.id, part)
            _check_kind(checkpoint, definition)
            chunks = _stream(checkpoint, definition, wanted)
            return OwningStream(chunks, resources.pop_all(), self._limits.timeout_s, MEDIA_TYPE, _headers(part))

    async def _make(
        self, stores: list[ServedStore], ttl_ms: int, owner: str | None, caller: str, pin: Pin | None
    ) -> Snapshot:
        await self._serving.workers.refresh()
        places: dict[str | None, list[tuple[str, int]]] = {}
        for store in stores:
            for partition in store.partitions:
                worker = self._serving.workers.owner(store.placement.task_id(partition))
                places.setdefault(worker, []).append((store.name, partition))
        share = Share(caller, self._serving.config.caller_share(self._most))
        unfinished = await asyncio.to_thread(self._directory.begin, now_ms(), self._most, self._most_bytes, share)
        try:
            asked = (self._serving.workers.snapshot(worker, unfinished.id, each) for worker, each in places.items())
            parts = [part for some in await asyncio.gather(*asked) for part in some]
            now = now_ms()
            return await asyncio.to_thread(self._directory.finish, unfinished, parts, now, now + ttl_ms, owner, pin)
        finally:
            unfinished.close()  # one that was not finished is swept

    async def _body(self, request: Request, allowed: tuple[str, ...]) -> Arguments:
        def parse(body: bytes) -> tuple[Arguments, int]:
            arguments = Arguments(from_body(body))
            arguments.refuse_others(allowed)
            return arguments, 0

        async with self._serving.bodies.read(request, parse, MAX_BODY_BYTES) as arguments:
            return arguments

    def _ttl_ms(self, arguments: Arguments) -> int:
        default_s = min(DEFAULT_TTL_S, self._longest_s)
        return 1000 * arguments.integer("ttl_s", default_s, 1, self._longest_s, "server.snapshot.ttl.max.ms")

    def _persistent(self, name: str) -> ServedStore:
        store = self._serving.stores.get(name)
        if not store.definition.persistent:
            raise InvalidArgumentError(
                f"stores: {name!r} is a store in memory, and only stores on disk can be in a snapshot: read it with a "
                "query, as a stream."
            )
        return store

    def _found(self, request: Request) -> Snapshot:
        snapshot = self._directory.find(request.path_params["id"], now_ms())
        require_read(request, dict.fromkeys(part.store for part in snapshot.parts))
        return snapshot

    def _own(self, request: Request) -> Snapshot:
        """The one that who asks may change."""
        snapshot = self._found(request)
        require_owner(request, snapshot.owner)
        return snapshot


async def _stream(
    checkpoint: Checkpoint, definition: StoreDefinition, wanted: RowSelection
) -> AsyncGenerator[bytes, None]:
    await loaded("stateline.server.snapshots.rows")
    from stateline.server.rows.arrow_rows import stream_batch, stream_start
    from stateline.server.snapshots.rows import batch_schema, batches

    yield stream_start(batch_schema(checkpoint, definition, wanted))
    with closing(batches(checkpoint, definition, wanted)) as found:
        for batch in found:
            if batch.num_rows:
                yield stream_batch(batch)
            await asyncio.sleep(0)  # a client that takes all at once must not keep the others waiting
    yield STREAM_END


def described(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as answers show it."""
    stores: dict[str, dict[str, Any]] = {}
    position = Position()
    for part in snapshot.parts:
        position = position.merge(part.position)
        stores.setdefault(part.store, {})[str(part.partition)] = _described_part(snapshot.id, part)
    return {
        "id": snapshot.id,
        "created_at": snapshot.created_at_ms,
        "expires_at": snapshot.expires_at_ms,
        "position": position.to_json(),
        "stores": stores,
    }


def _described_part(snapshot_id: str, part: CheckpointPart) -> dict[str, Any]:
    return {
        "path": f"{PATH}/{snapshot_id}/stores/{quote(part.store, safe='')}/partitions/{part.partition}",
        "position": part.position.to_json(),
        "commit": part.commit,
        "committed_at_ms": part.committed_at_ms,
    }


def _headers(part: CheckpointPart) -> dict[str, str]:
    return {"Stateline-Position": orjson.dumps(part.position.to_json()).decode()}


def _pin(arguments: Arguments, owner: str | None, stores: Iterable[str]) -> Pin | None:
    text = arguments.text("pin")
    if text is None:
        return None
    if not 1 <= len(text) <= MAX_PIN:
        raise InvalidArgumentError(f"pin={shown(text)} has {len(text)} characters: 1 to {MAX_PIN} are accepted.")
    return Pin(text, owner, frozenset(stores))


def _partition(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    raise DoesNotExistError(f"{shown(text)} is no partition: partitions are numbers from 0 on.")


def _check_kind(checkpoint: Checkpoint, definition: StoreDefinition) -> None:
    layout = checkpoint.layout
    found = layout.declared_kind
    if found != definition.kind:
        raise CursorExpiredError(
            f"The snapshot holds a {found} store, and {definition.name!r} is declared as "
            f"{definition.kind} since: make a new one."
        )
    if checkpoint.types not in (None, definition.types):
        raise CursorExpiredError(
            f"The snapshot holds {definition.name!r} with other types than are declared since: make a new one."
        )
