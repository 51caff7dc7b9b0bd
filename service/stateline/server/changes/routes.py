"""`GET /v1/stores/{store}/changes`: the change feed as Server-Sent Events.

The id of an event is a position over the topic of the changes: the offsets of everything given so far, by partition. So
the feed can continue after it. Before the first event, an id of its own says where the stream begins. A reader that is
cut off before any change continues there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.log import Record
from stateline.model.store_definition import StoreDefinition
from stateline.serde.record_members import headers_of
from stateline.server.changes.feed import ChangeFeed, read_position, shown_headers, timestamp_of
from stateline.server.changes.pending import ChangeSource
from stateline.server.changes.rows import OPERATIONS as ROWS
from stateline.server.changes.rows import ChangeRowRoutes
from stateline.server.changes.topic_reader import After, Begin
from stateline.server.contract.answers import head_response, key_members
from stateline.server.contract.arguments import Arguments, refuse_parameters
from stateline.server.contract.formats import check_format
from stateline.server.contract.openapi import Operation
from stateline.server.contract.written_arguments import Argument, from_body, from_query_string
from stateline.server.guard.caller import caller_of
from stateline.server.rows.event_stream import CHUNK_BYTES, HEADERS, MEDIA_TYPE, EventStream, event_bytes
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import TimeLimits
from stateline.server.wire.turns import ScanPace, let_others_in
from stateline_store import DamagedDataError, InvalidArgumentError, IsolationLevel, TooManyRequestsError
from stateline_store.reads.window_reads import window_end_ms
from stateline_store.rows.windowed_keys import split_session_key, split_window_key

PATH = "/v1/stores/{store}/changes"
PARAMETERS = ("from", "partition", "isolation_level")
OPERATIONS = (
    Operation(
        PATH,
        "get",
        "Committed changes as Server-Sent Events: from a position on, then live.",
        ("changes.from", "partition", "changes.isolation_level"),
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        media_type=MEDIA_TYPE,
    ),
    Operation(
        PATH,
        "post",
        "The same with a JSON body, for a position that is too long for a URL.",
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        members=dict.fromkeys(("changes.from", "partition", "changes.isolation_level"), False),
        media_type=MEDIA_TYPE,
    ),
    *ROWS,
)
# How long a client should wait before it reconnects. Browsers do so by themselves.
_RETRY_MS = 1000


@dataclass(frozen=True, slots=True)
class ChangeFigures:
    """The number of open change feeds, and the lag of the slowest one."""

    open: int
    lag_s: float


class ChangeRoutes:
    """The endpoints, and the limits on readers: of all callers together and of each."""

    def __init__(self, stores: ServedStores, bodies: Bodies, limits: TimeLimits, source: ChangeSource) -> None:
        self._stores, self._bodies, self._limits, self._source = stores, bodies, limits, source
        self._config = source.config
        self._feeds: dict[ChangeFeed, str] = {}  # and whose
        self._rows = ChangeRowRoutes(stores, source)

    @property
    def figures(self) -> ChangeFigures:
        return ChangeFigures(len(self._feeds), max((feed.lag_s for feed in self._feeds), default=0.0))

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self.changes, methods=["GET", "POST"]), *self._rows.routes()]

    async def changes(self, request: Request) -> Response:
        """GET …/changes, or POST with a body: every committed change after a position, then live."""
        store = self._stores.get(request.path_params["store"])
        topic = self._source.topic(store)
        if request.method == "POST":
            refuse_parameters(request)
            async with self._bodies.read(request, lambda body: (from_body(body), 0)) as given:
                pass
        else:
            given = from_query_string(request.scope["query_string"])
        arguments = Arguments(given)
        arguments.refuse_others(PARAMETERS)
        arguments.choice("isolation_level", "read_committed", (IsolationLevel.READ_COMMITTED.value,))
        partitions = store.chosen(arguments.partitions())
        begin = self._begin(store, topic, request, given)
        caller = caller_of(request)
        self._check_room(caller)
        check_format(request, MEDIA_TYPE)
        if request.method == "HEAD":
            return head_response(MEDIA_TYPE, HEADERS)
        return await self._stream(store, partitions, begin, caller)

    def _begin(self, store: ServedStore, topic: str, request: Request, given: Mapping[str, Argument]) -> Begin | None:
        """Return where to begin; None is latest. A browser that comes back sends its first URL and the id of the last
        event."""
        inputs = self._source.inputs(store)
        if last := request.headers.get("last-event-id"):
            return read_position("Last-Event-ID", last, topic, inputs, len(store.partitions))
        begin = "latest" if "from" not in given else given["from"].value
        if begin in ("latest", None):
            return None
        if begin == "earliest":
            return After({}, exactly=False)
        return read_position("from", begin, topic, inputs, len(store.partitions))

    def _check_room(self, caller: str) -> None:
        """Raise `TooManyRequestsError` if there is no room for another feed of this caller."""
        most = self._config.server_changes_max
        if len(self._feeds) >= most:
            raise TooManyRequestsError(
                f"{len(self._feeds)} change feeds are being read, as many as server.changes.max allows: ask again "
                "later."
            )
        if (own := list(self._feeds.values()).count(caller)) >= self._config.caller_share(most):
            raise TooManyRequestsError(
                f"{own} change feeds are yours, as many of {most} as server.caller.share.percent allows: end one first."
            )

    async def _stream(
        self, store: ServedStore, partitions: Sequence[int], begin: Begin | None, caller: str
    ) -> Response:
        config = self._config
        feed = ChangeFeed(self._source, store, partitions)
        self._feeds[feed] = caller
        try:
            next_offsets = await feed.begin(begin)
        except BaseException:
            self._release(feed)
            raise
        return EventStream(
            _events(store.definition, feed, next_offsets),
            lambda: self._release(feed),
            self._limits,
            buffer_bytes=config.server_changes_buffer_bytes,
            heartbeat_s=config.server_changes_heartbeat_ms / 1000,
            slow_s=config.server_changes_slow_ms / 1000,
        )

    def _release(self, feed: ChangeFeed) -> None:
        feed.close()
        self._feeds.pop(feed, None)


async def _events(
    definition: StoreDefinition, feed: ChangeFeed, next_offsets: Mapping[int, int]
) -> AsyncGenerator[bytes, None]:
    given = {str(p): at - 1 for p, at in sorted(next_offsets.items()) if at > 0}
    yield b"retry: %d\nid: %b\n\n" % (_RETRY_MS, orjson.dumps({feed.topic: given}))
    pace = ScanPace()
    async with aclosing(feed.changes()) as changes:
        async for records in changes:
            at = 0
            while at < len(records):
                some, events = records[at : at + pace.rows], bytearray()
                with pace.step(len(some)):
                    for record in some:
                        given[str(record.partition)] = record.offset
                        position = orjson.dumps({feed.topic: given})
                        events += event_bytes(change_members(definition, record), name="change", position=position)
                        at += 1
                        if len(events) >= CHUNK_BYTES:
                            break
                yield bytes(events)
                await let_others_in()


def change_members(definition: StoreDefinition, record: Record) -> dict[str, Any]:
    """Return `key` (with `start` and `end` in a windowed store), `value`, `timestamp`, `partition`, `offset`, and
    `headers` in a store that keeps them.

    A value of None is a deletion. Raises `DamagedDataError` for bytes that are not of the store's types.
    """
    assert record.key is not None, "changes without a key are left out"
    try:
        value = None if record.value is None else definition.value.to_json(record.value)
        members = _key_members(definition, record.key)
    except InvalidArgumentError as error:
        raise DamagedDataError(
            f"The change at offset {record.offset} of {record.topic}-{record.partition} cannot be shown: {error} "
            "Declare the type that was written, or correct the topic."
        ) from error
    where = {"partition": record.partition, "offset": record.offset}
    changed = {**members, "value": value, "timestamp": timestamp_of(definition, record), **where}
    if not definition.headers:
        return changed
    headers = shown_headers(definition, record)
    return {**changed, "headers": None if headers is None else headers_of(headers)}


def _key_members(definition: StoreDefinition, stored: bytes) -> dict[str, Any]:
    match definition.plain_kind:
        case "window":
            key, start_ms, _ = split_window_key(stored)
            times = {"start": start_ms, "end": window_end_ms(start_ms, definition.window_size_ms)}
        case "session":
            key, start_ms, end_ms = split_session_key(stored)
            times = {"start": start_ms, "end": end_ms}
        case _:
            key, times = stored, {}
    return {**key_members(definition.key, key), **times}
