"""`/v1/snapshots`: made, described, renewed, released and read as Arrow, at any node (`cluster`).

Each node keeps its part (`own_parts`), and its rows are read there.

    POST  {"stores": [name …], "ttl_s": seconds,
           "pin": text}                              201, and as GET; 200 with the one that this pin has already made
    GET   {"id", "created_at", "expires_at", "position", "stores": {store: {partition:
           {"path", "url", "node", "position", "commit", "committed_at_ms"}}}}       times in ms since the epoch
    PATCH {"ttl_s": seconds from now}                200, and as GET
    DELETE                                           204
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.config.settings import Config
from stateline.model.store_definition import StoreDefinition
from stateline.rows.columns import STREAM_END
from stateline.rows.ranges import wanted_splits
from stateline.rows.selection import RowSelection
from stateline.serde.plain import JsonSerde, shown
from stateline.serde.registered import awaits_registry
from stateline.server.contract.answers import head_response, json_response
from stateline.server.contract.arguments import Arguments, refuse_parameters
from stateline.server.contract.formats import ARROW, check_format
from stateline.server.contract.problems import problem_response
from stateline.server.contract.written_arguments import from_body, from_query_string
from stateline.server.guard.caller import caller_of, may_read, name_of, require_owner, require_read
from stateline.server.guard.limits import Limits
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.relay.large_reads import LargeReads, note_body
from stateline.server.rows.streams import OwningStream
from stateline.server.snapshots.asked_nodes import NodeRefusedError
from stateline.server.snapshots.cluster import ClusterSnapshots, KeptSnapshot, described
from stateline.server.snapshots.filter import (
    read_selected_keys,
    read_selection,
    read_split_size,
    split_text,
)
from stateline.server.snapshots.operations import ONE, PATH, ROWS, SPLITS
from stateline.server.snapshots.own_parts import SnapshotRequest
from stateline.server.snapshots.part_routes import PartRoutes
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.loading import loaded
from stateline.server.wire.turns import ScanPace, let_others_in
from stateline_store import CursorExpiredError, DoesNotExistError, InvalidArgumentError, NotPresentError
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart
from stateline_store.snapshots.snapshot import Pin, Snapshot

DEFAULT_TTL_S = 300
MAX_BODY_BYTES = 1024 * 1024
MAX_STORES = 1000
MAX_PIN = 64  # characters


def _by_method(path: str, handlers: Mapping[str, Callable[[Request], Awaitable[Response]]]) -> Route:
    """Return one route, so that other methods are answered with all that it takes (`Allow`)."""

    async def handle(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        if came_over_link(request) and (path, request.method) != (PATH, "GET"):
            raise NotPresentError("A node asks for what others may have a part in: nothing is handed on.")
        try:
            return await handler(request)
        except NodeRefusedError as refused:
            return problem_response(
                refused.error, store=refused.store, partition=refused.partition, owner=refused.owner
            )

    return Route(path, handle, methods=list(handlers))


class SnapshotRoutes:
    """The endpoints. One per server process, for the event loop's thread."""

    def __init__(
        self,
        config: Config,
        stores: ServedStores,
        bodies: Bodies,
        limits: Limits,
        sweeper: SnapshotSweeper,
        cluster: ClusterSnapshots,
        large: LargeReads,
    ) -> None:
        self._large = large
        self._stores, self._bodies, self._limits = stores, bodies, limits
        self._most_keys = config.server_limit_max
        self._longest_s = max(1, config.server_snapshot_ttl_max_ms // 1000)
        self._checkpoints = sweeper.checkpoints
        self._sweeper = sweeper
        self._cluster, self._own, self._nodes = cluster, cluster.own, cluster.nodes
        self._parts = PartRoutes(self._own, sweeper, self._longest_s, stores, large, limits.timeout_s)

    def routes(self) -> list[BaseRoute]:
        return [
            _by_method(PATH, {"GET": self.all, "POST": self.create}),
            _by_method(ONE, {"GET": self.show, "PATCH": self.renew, "DELETE": self.release}),
            _by_method(ROWS, {"GET": self.rows, "POST": self.rows_of_keys}),
            _by_method(SPLITS, {"GET": self.splits}),
            *self._parts.routes(),
        ]

    async def create(self, request: Request) -> Response:
        """POST /v1/snapshots: make one of these stores, with all their partitions."""
        refuse_parameters(request)
        arguments = await self._body(request, ("stores", "ttl_s", "pin"))
        names = arguments.texts("stores", MAX_STORES)
        require_read(request, names)
        stores = [self._persistent(name) for name in names]
        owner, ttl_ms = name_of(request), self._ttl_ms(arguments)
        wanted = SnapshotRequest(names, ttl_ms, owner, caller_of(request), read_pin(arguments, owner, names))
        found, is_new = await self._cluster.create(stores, wanted)
        response = json_response(self._described(found), 201 if is_new else 200)
        response.headers["Location"] = f"{PATH}/{found.snapshot.id}"
        return response

    async def all(self, request: Request) -> Response:
        """GET /v1/snapshots: those whose stores the caller may read; for a node, those it keeps."""
        refuse_parameters(request)
        kept = await self._cluster.kept_here()
        found = [each for each in kept if all(may_read(request, store) for store in each.stores)]
        others = [] if came_over_link(request) else await self._cluster.kept_elsewhere()
        return json_response({"snapshots": [*map(self._described, found), *others]})

    async def show(self, request: Request) -> Response:
        refuse_parameters(request)
        return json_response(self._described(await self._found(request)))

    async def renew(self, request: Request) -> Response:
        refuse_parameters(request)
        ttl_ms = self._ttl_ms(await self._body(request, ("ttl_s",)))
        renewed = await self._cluster.renew(await self._owned(request), ttl_ms)
        return json_response(self._described(renewed))

    async def release(self, request: Request) -> Response:
        """DELETE /v1/snapshots/{id}. Open streams of its rows are completed."""
        refuse_parameters(request)
        await self._cluster.release(await self._owned(request))
        self._sweeper.close_released()
        return Response(status_code=204)

    async def rows(self, request: Request) -> Response:
        snapshot, part, definition = await self._part(request)
        wanted = read_selection(Arguments(from_query_string(request.scope["query_string"])), definition)
        check_format(request, ARROW)
        if request.method == "HEAD":
            return head_response(ARROW, _headers(part))
        if (answer := await self._large.answer(request)) is not None:
            return answer
        return await self._rows(request, snapshot, part, definition, wanted)

    async def rows_of_keys(self, request: Request) -> Response:
        """POST …/stores/{store}/partitions/{partition}: the rows that a body asks for, of its keys if it names any."""
        refuse_parameters(request)
        check_format(request, ARROW)
        snapshot, part, definition = await self._part(request)

        def parse(body: bytes) -> tuple[RowSelection, int]:
            note_body(request, body)
            arguments = Arguments(from_body(body, keep_text=isinstance(definition.key, JsonSerde)))
            return read_selected_keys(arguments, definition, self._most_keys), arguments.key_bytes

        blocks = awaits_registry(definition.key)
        async with self._bodies.read(request, parse, blocks=blocks) as wanted:
            if (answer := await self._large.answer(request)) is not None:
                return answer
            return await self._rows(request, snapshot, part, definition, wanted)

    async def splits(self, request: Request) -> Response:
        snapshot, part, definition = await self._part(request)
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        wanted, size = read_split_size(arguments, definition)
        if (answer := await self._large.answer(request)) is not None:
            return answer
        async with self._opened(snapshot, part, definition) as checkpoint:
            found = await asyncio.to_thread(wanted_splits, checkpoint, definition, wanted, size)
        return json_response({"splits": [{"split": split_text(each.keys), "bytes": each.size} for each in found]})

    async def _part(self, request: Request) -> tuple[Snapshot, CheckpointPart, StoreDefinition]:
        snapshot_id, name = request.path_params["id"], request.path_params["store"]
        partition = _partition(request.path_params["partition"])
        try:
            snapshot = self._own.find(snapshot_id)
            part = snapshot.part(name, partition)
        except DoesNotExistError:
            raise self._elsewhere(await self._found(request), name, partition) from None
        require_read(request, dict.fromkeys(part.store for part in snapshot.parts))
        definition = self._stores.declared(name)
        if definition is None:
            raise DoesNotExistError(f"The application has no store {shown(name)} any more.")
        return snapshot, part, definition

    def _elsewhere(self, found: KeptSnapshot, store: str, partition: int) -> Exception:
        """Return why that part is not read here."""
        holder = next((each for each in found.nodes if each.has(store, partition)), None)
        if holder is None:
            return DoesNotExistError(
                f"The snapshot {found.snapshot.id} has no partition {partition} of {shown(store)}."
            )
        if holder.node == self._nodes.own:
            return CursorExpiredError(
                f"This node's part of the snapshot {found.snapshot.id} is gone. Make another snapshot."
            )
        url = self._nodes.url(holder.node)
        where = f"node {holder.node!r}" if url is None else f"node {holder.node!r}, at {url}"
        error = NotPresentError(f"This part of the snapshot is kept by {where}: read it there.")
        return NodeRefusedError(error, url, store, partition)

    async def _rows(
        self,
        request: Request,
        snapshot: Snapshot,
        part: CheckpointPart,
        definition: StoreDefinition,
        wanted: RowSelection,
    ) -> Response:
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(self._limits.scan(caller_of(request)))
            checkpoint = await resources.enter_async_context(self._opened(snapshot, part, definition))
            chunks = _stream(checkpoint, definition, wanted)
            return OwningStream(chunks, resources.pop_all(), self._limits.timeout_s, ARROW, _headers(part))

    @asynccontextmanager
    async def _opened(
        self, snapshot: Snapshot, part: CheckpointPart, definition: StoreDefinition
    ) -> AsyncGenerator[Checkpoint, None]:
        checkpoint = await self._checkpoints.acquire(snapshot.id, part)
        try:
            _check_kind(checkpoint, definition)
            yield checkpoint
        finally:
            self._checkpoints.release(snapshot.id, part)

    async def _body(self, request: Request, allowed: tuple[str, ...]) -> Arguments:
        def parse(body: bytes) -> tuple[Arguments, int]:
            arguments = Arguments(from_body(body))
            arguments.refuse_others(allowed)
            return arguments, 0

        async with self._bodies.read(request, parse, MAX_BODY_BYTES) as arguments:
            return arguments

    def _ttl_ms(self, arguments: Arguments) -> int:
        default_s = min(DEFAULT_TTL_S, self._longest_s)
        return 1000 * arguments.integer("ttl_s", default_s, 1, self._longest_s, "server.snapshot.ttl.max.ms")

    def _persistent(self, name: str) -> ServedStore:
        store = self._stores.get(name)
        if store.is_global:
            raise InvalidArgumentError(
                f"stores: {name!r} is a global table, and only stores of tasks can be in a snapshot: read it with a "
                "query, as a stream."
            )
        if not store.definition.persistent:
            raise InvalidArgumentError(
                f"stores: {name!r} is a store in memory, and only stores on disk can be in a snapshot: read it with a "
                "query, as a stream."
            )
        return store

    async def _found(self, request: Request) -> KeptSnapshot:
        found = await self._cluster.find(request.path_params["id"])
        require_read(request, found.stores)
        return found

    async def _owned(self, request: Request) -> KeptSnapshot:
        """Return the snapshot if the caller may change it."""
        found = await self._found(request)
        require_owner(request, found.snapshot.owner)
        return found

    def _described(self, found: KeptSnapshot) -> dict[str, Any]:
        return described(found, self._nodes)


async def _stream(
    checkpoint: Checkpoint, definition: StoreDefinition, wanted: RowSelection
) -> AsyncGenerator[bytes, None]:
    await loaded("stateline.rows.snapshot_rows")
    from stateline.rows.arrow_rows import stream_batch, stream_start
    from stateline.rows.snapshot_rows import batch_schema, batches

    yield stream_start(batch_schema(checkpoint, definition, wanted))
    pace = ScanPace()
    with closing(batches(checkpoint, definition, wanted, lambda: pace.rows)) as found:
        while True:
            with pace.step(pace.rows):
                batch = next(found, None)
                piece = stream_batch(batch) if batch is not None and batch.num_rows else b""
            if batch is None:
                break
            if piece:
                yield piece
            await let_others_in()  # a client that takes all at once must not keep the others waiting
    yield STREAM_END


def _headers(part: CheckpointPart) -> dict[str, str]:
    return {"Stateline-Position": orjson.dumps(part.position.to_json()).decode()}


def read_pin(arguments: Arguments, owner: str | None, stores: Iterable[str]) -> Pin | None:
    """Return the pin of these stores that was asked for, if any."""
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
    found = checkpoint.layout.form
    if found != definition.form:
        raise CursorExpiredError(
            f"The snapshot holds a {found} store, and {definition.name!r} is declared as "
            f"{definition.form} since: make a new one."
        )
    if checkpoint.types not in (None, definition.types):
        raise CursorExpiredError(
            f"The snapshot holds {definition.name!r} with other types than are declared since: make a new one."
        )
