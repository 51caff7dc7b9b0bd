"""The committed changes of a store between two offsets, for readers that plan what they read, like Spark.

    GET …/changes/offsets[?from=]     {"store", "topic", "topic_id", "partitions", "key_type", "value_type",
                                       "begin": {partition: offset}, "end": {partition: offset},
                                       "columns": [{"name", "type", "nullable"}]}
    GET …/changes/rows?partition=&begin=&end=&topic_id=[&columns=]
                                      these changes as an Arrow stream (`batches`), with its end mark

Offsets are those of the next record to read. `end` is after everything committed, and never goes back. A partition that
could never be read has none. So a reader that goes from one `end` to a later one gets every committed change once. The
same offsets return the same changes, except those that a compaction has removed since.

The rows come from the log through their own consumer, and only up to what the store has committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.log import Record
from stateline.query.kinds import BOOLEAN, INTEGER, STRING
from stateline.rows.columns import STREAM_END, change_columns
from stateline.server.changes.feed import changes_of, read_position
from stateline.server.changes.log import ChangeLog
from stateline.server.changes.pending import ChangeSource
from stateline.server.changes.topic_reader import After
from stateline.server.contract.answers import head_response, json_response
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.formats import ARROW, JSON, check_format
from stateline.server.contract.observation import observed
from stateline.server.contract.openapi import Operation, object_schema
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.guard.caller import caller_of
from stateline.server.guard.limits import Limits
from stateline.server.rows.streams import OwningStream
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.wire.loading import loaded
from stateline.server.wire.turns import ScanPace, let_others_in
from stateline_store import InvalidArgumentError, NotReadyError, Position

if TYPE_CHECKING:
    import pyarrow as pa

OFFSETS = "/v1/stores/{store}/changes/offsets"
ROWS = "/v1/stores/{store}/changes/rows"
_BY_PARTITION = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
_COLUMN = object_schema({"name": STRING, "type": STRING, "nullable": BOOLEAN})
_ANSWER = object_schema(
    {
        "store": STRING,
        "topic": STRING,
        "topic_id": STRING,
        "partitions": INTEGER,
        "key_type": STRING,
        "value_type": STRING,
        "begin": _BY_PARTITION,
        "end": _BY_PARTITION,
        "columns": {"type": "array", "items": _COLUMN},
    },
    optional=("begin",),
)
_PROBLEMS = (400, 404, 410, 421, 422, 429, 500, 503)
OPERATIONS = (
    Operation(
        OFFSETS,
        "get",
        "The end of each partition's committed changes, and the offsets where a reader begins.",
        ("offsets.from",),
        problems=_PROBLEMS,
        answer=_ANSWER,
    ),
    Operation(
        ROWS,
        "get",
        "The committed changes of a partition between two offsets, as an Arrow stream.",
        ("rows.partition", "begin", "end", "topic_id", "columns"),
        problems=(*_PROBLEMS, 406),
        media_type=ARROW,
    ),
)
_LARGEST_OFFSET = 2**63 - 1
# Records of one look at the log: a batch of Arrow has no more.
_POLL_RECORDS = 4096
# How long a topic's id counts. Reads with it compare it with the log's.
_TOPIC_ID_S = 5.0
# How long committed records may take to arrive: a transaction's markers may be missing, or a broker is slow.
_PATIENCE_S = 15.0
_ALL: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _RowsRequest:
    store: ServedStore
    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int


class ChangeRowRoutes:
    """The endpoints, and the known commits of the stores. One per server process, for the event loop's thread."""

    def __init__(self, stores: ServedStores, source: ChangeSource) -> None:
        self._stores, self._source = stores, source
        self._topic_ids: dict[str, tuple[str, float]] = {}  # topic → its id, and until when that is believed
        # By topic id, store and partition: what was committed once is so for ever.
        self._ends: dict[tuple[str, str, int], int] = {}
        self._positions: dict[tuple[str, str, int], Position] = {}  # of stores in memory: what `_ends` follows from

    def routes(self) -> list[BaseRoute]:
        return [Route(OFFSETS, self.offsets), Route(ROWS, self.rows)]

    async def offsets(self, request: Request) -> Response:
        """GET …/changes/offsets: the end of the committed changes, and where `from` begins."""
        store = self._stores.get(request.path_params["store"])
        topic = self._source.topic(store)
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(("from",))
        if request.method == "HEAD":
            return head_response(JSON)
        limits: Limits = request.app.state.limits
        async with limits.scan(caller_of(request)), limits.query():
            is_changelog = store.definition.source is None
            changelog = ChangeLog(self._source.config, topic, store.partitions, is_changelog=is_changelog)
            with closing(changelog) as log:
                described = await self._described(store, topic, log, arguments.text("from"))
        return json_response(described)

    async def rows(self, request: Request) -> Response:
        """GET …/changes/rows: the committed changes between two offsets, as an Arrow stream."""
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        asked = self._rows_request(request.path_params["store"], arguments)
        columns = arguments.text("columns")
        chosen = None if columns is None else columns.split(",")
        change_columns(asked.store.definition, chosen)  # raises for one that there is not
        check_format(request, ARROW)
        if request.method == "HEAD":
            return head_response(ARROW)
        await loaded("stateline.server.changes.batches")
        from stateline.server.changes.batches import change_schema

        schema = change_schema(asked.store.definition, chosen, asked.topic, asked.topic_id)
        limits: Limits = request.app.state.limits
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(limits.scan(caller_of(request)))
            log = self._log_of(asked)
            resources.callback(log.close)
            await log.begin(After({asked.partition: asked.begin - 1} if asked.begin else {}))
            await self._require_committed(asked, log)
            pieces = await resources.enter_async_context(aclosing(self._pieces(asked, log, schema)))
            first = await anext(pieces, None)  # what cannot be read is refused, rather than broken off
            return OwningStream(_stream(schema, first, pieces), resources.pop_all(), limits.timeout_s, ARROW, {})

    async def _described(self, store: ServedStore, topic: str, log: ChangeLog, begin: str | None) -> dict[str, Any]:
        topic_id = await self._topic_id(topic, log, believe=begin in (None, "latest"))
        ends = await self._committed_ends(store, topic, topic_id, log, store.partitions)
        described: dict[str, Any] = {
            "store": store.name,
            "topic": topic,
            "topic_id": topic_id,
            "partitions": len(store.partitions),
            "key_type": store.definition.key.name,
            "value_type": store.definition.value.name,
        }
        if begin is not None:
            described["begin"] = _by_partition(await self._begin(store, topic, log, begin, ends))
        columns = [asdict(column) for column in change_columns(store.definition)]
        return {**described, "end": _by_partition(ends), "columns": columns}

    async def _begin(
        self, store: ServedStore, topic: str, log: ChangeLog, text: str, ends: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Begin as change feeds do. But latest is exact: a partition with an unknown end refuses it."""
        if text == "latest":
            if missing := [p for p in store.partitions if p not in ends]:
                raise NotReadyError(
                    f"The end of partition {missing[0]} of {store.name!r} cannot be read now, and latest means "
                    "the end of all partitions. Ask again in a moment."
                )
            return ends
        if text == "earliest":
            await log.begin(After({}, exactly=False))
        else:
            inputs = self._source.inputs(store)
            await log.begin(read_position("from", text, topic, inputs, len(store.partitions)))
        return log.next_offsets

    async def _topic_id(self, topic: str, log: ChangeLog, *, believe: bool) -> str:
        now_s = asyncio.get_running_loop().time()
        known, until_s = self._topic_ids.get(topic, ("", 0.0))
        if not (believe and now_s < until_s):
            known = await log.topic_id()
            self._topic_ids[topic] = known, now_s + _TOPIC_ID_S
        return known

    async def _committed_ends(
        self, store: ServedStore, topic: str, topic_id: str, log: ChangeLog, partitions: range | tuple[int, ...]
    ) -> dict[int, int]:
        """Return the offset after the last committed change, by partition. Partitions that could never be read are left
        out."""
        committed = self._source.committed(store)
        keys = {p: (topic_id, store.name, p) for p in partitions}
        if committed.by_position:
            positions = await committed.positions(partitions)
            moved = {p: seen for p, seen in positions.items() if self._positions.get(keys[p]) != seen}
            known = {p: self._ends.get(key, 0) for p, key in keys.items()}
            found = await log.ends_of_commits(moved, known) if moved else {}
            self._positions |= {keys[p]: seen for p, seen in moved.items()}
        else:
            found = await committed.next_offsets(partitions)
        for p, end in found.items():  # a copy that is being restored has less for a while
            self._ends[keys[p]] = max(end, self._ends.get(keys[p], 0))
        return {p: self._ends[key] for p, key in keys.items() if key in self._ends}

    def _rows_request(self, name: str, arguments: Arguments) -> _RowsRequest:
        store = self._stores.get(name)
        topic = self._source.topic(store)
        arguments.refuse_others(("partition", "begin", "end", "topic_id", "columns"))
        for needed in ("partition", "begin", "end", "topic_id"):
            if needed not in arguments:
                raise InvalidArgumentError(f"{needed} is missing: …/changes/offsets says what to ask for.")
        partitions = arguments.partitions() or ()
        if len(partitions) != 1:
            raise InvalidArgumentError("partition is to be one: ask for each partition alone.")
        store.chosen(partitions)
        begin, end = (arguments.integer(each, 0, 0, _LARGEST_OFFSET, "an offset") for each in ("begin", "end"))
        if begin > end:
            raise InvalidArgumentError(f"begin={begin} is behind end={end}: end is the offset after the last one.")
        return _RowsRequest(store, topic, arguments.text("topic_id") or "", partitions[0], begin, end)

    def _log_of(self, asked: _RowsRequest) -> ChangeLog:
        return ChangeLog(
            self._source.config,
            asked.topic,
            (asked.partition,),
            topic_id=asked.topic_id,
            poll_records=max(1, min(_POLL_RECORDS, asked.end - asked.begin)),
            is_changelog=asked.store.definition.source is None,
        )

    async def _require_committed(self, asked: _RowsRequest, log: ChangeLog) -> None:
        """Raise `NotReadyError` unless everything asked for is known to be committed. The log may have more."""
        key = asked.topic_id, asked.store.name, asked.partition
        if asked.end <= self._ends.get(key, 0):
            return
        partitions = (asked.partition,)
        ends = await self._committed_ends(asked.store, asked.topic, asked.topic_id, log, partitions)
        if asked.end > (end := ends.get(asked.partition, 0)):
            raise NotReadyError(
                f"Partition {asked.partition} of {asked.store.name!r} is known to be committed up to offset {end}, and "
                f"end={asked.end} is asked for: ask again in a moment, or for less."
            )

    async def _pieces(self, asked: _RowsRequest, log: ChangeLog, schema: pa.Schema) -> AsyncGenerator[bytes, None]:
        """Yield the changes, as batches of a stream. Then check that the topic is still the same."""
        from stateline.rows.arrow_rows import stream_batch
        from stateline.server.changes.batches import change_batch, pieces

        definition, pace = asked.store.definition, ScanPace()
        async with aclosing(self._records(asked, log)) as found:
            async for records in found:
                for some in pieces(records, lambda: pace.rows):
                    with pace.step(len(some)):
                        changes = changes_of(definition, some, self._source.config)
                        piece = stream_batch(change_batch(definition, changes, schema)) if changes else b""
                    observed().rows += len(changes)
                    if piece:
                        yield piece
                    await let_others_in()  # a client that takes all at once must not keep the others waiting
        await log.check_topic()

    async def _records(self, asked: _RowsRequest, log: ChangeLog) -> AsyncGenerator[list[Record], None]:
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + _PATIENCE_S
        while log.next_offsets[asked.partition] < asked.end:
            if self._source.commits.closed or now_s() > deadline_s:
                raise NotReadyError(f"{asked.topic}-{asked.partition} is not read up to offset {asked.end}: ask again.")
            if records := await log.read(_ALL):
                yield [record for record in records if record.offset < asked.end]
                deadline_s = now_s() + _PATIENCE_S


async def _stream(
    schema: pa.Schema, first: bytes | None, others: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    from stateline.rows.arrow_rows import stream_start

    yield stream_start(schema)
    if first is not None:
        yield first
        async for piece in others:
            yield piece
    yield STREAM_END


def _by_partition(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
