"""Entries as a stream, without paging: NDJSON, CSV or Arrow. Each batch is made when the client has taken the last one.

The state is pinned for as long as the stream lasts, and released when the client leaves. A failure on the way breaks
the connection off, so a stream with a regular end in HTTP has all entries. The other members of an answer are in the
headers `Stateline-Position`, `Stateline-Isolation-Level`, `Stateline-Stopped` if no worker runs the store any more,
and with `allow_partial` `Stateline-Failures`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, TypeVar

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stateline.model.store_definition import StoreDefinition
from stateline.query.values import Entry, Outcome, Terms, answers_of, failures_of, merged_position
from stateline.rows.columns import STREAM_END
from stateline.server.contract.answers import stopped
from stateline.server.contract.formats import ARROW, CSV
from stateline.server.contract.observation import observed
from stateline.server.contract.problems import failures_json
from stateline.server.rows import csv_rows, ndjson_rows
from stateline.server.state.merged_scan import MergedScan
from stateline.server.wire.loading import loaded
from stateline.server.wire.turns import ScanPace, let_others_in
from stateline_store.reads.session_reads import sessions_of
from stateline_store.reads.window_reads import windows_of

T = TypeVar("T")


class OwningStream(StreamingResponse):
    """A stream that owns `resources` until its end. A client that takes nothing for `patience_s` is cut off, because it
    would keep them, and a place of server.scans.max."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        resources: AsyncExitStack,
        patience_s: float,
        media_type: str,
        headers: Mapping[str, str],
        status: int = 200,
    ) -> None:
        self._resources, self._patience_s = resources, patience_s
        self._chunks = chunks
        super().__init__(chunks, status, media_type=media_type, headers=headers)

    async def collected(self) -> bytes:
        """Return all of it, instead of sending it. Raises what a piece raises."""
        async with self._resources, aclosing(self._chunks) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience_s):
                    await send(message)
            except TimeoutError as error:  # Starlette takes an OSError for a client that has left
                raise ConnectionAbortedError(f"The client took nothing for {self._patience_s:g} s.") from error

        async with self._resources:
            await super().__call__(scope, receive, send_in_time)


def chunks_of(
    media_type: str,
    definition: StoreDefinition,
    scan: MergedScan,
    columns: Sequence[str],
    *,
    chosen: bool,
    stored: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Return all entries of this scan in this format. `columns` are those of JSON, and of Arrow if they were chosen.
    `stored`: the entries are stored rows of a window or session store."""
    if media_type == ARROW:
        return _arrow(definition, scan, columns if chosen else None, stored)
    first, lines = b"", partial(ndjson_rows.lines, with_key="key" in columns)
    if media_type == CSV:
        first, lines = csv_rows.header(columns), partial(csv_rows.lines, columns=columns)
    elif chosen:
        lines = partial(ndjson_rows.chosen_lines, columns=columns)
    return _text(definition, scan, partial(_of_stored, lines) if stored else lines, first)


def _of_stored(lines: Callable[[StoreDefinition, Any], bytes], definition: StoreDefinition, rows: Any) -> bytes:
    is_session = definition.plain_kind == "session"
    return lines(definition, sessions_of(rows) if is_session else windows_of(rows, definition.window_size_ms))


def headers_of(terms: Terms, outcomes: Mapping[int, Outcome], *, details: bool = True) -> dict[str, str]:
    """Return the headers with what a JSON answer has beside its entries. The position is one of the details."""
    headers = {"Stateline-Isolation-Level": terms.isolation_level.value}
    answers = answers_of(outcomes).values()
    if (why := stopped(answers)) is not None:
        headers["Stateline-Stopped"] = json.dumps(why)[1:-1]  # in ASCII
    if details:
        position = merged_position(answers)
        headers["Stateline-Position"] = orjson.dumps(position.to_json()).decode()
    if failures := failures_of(outcomes):
        headers["Stateline-Failures"] = json.dumps(failures_json(failures))  # in ASCII
    return headers


async def _text(
    definition: StoreDefinition, scan: MergedScan, lines: Callable[[StoreDefinition, Any], bytes], first: bytes = b""
) -> AsyncGenerator[bytes, None]:
    async with aclosing(_pieces(scan, partial(lines, definition))) as pieces:
        async for piece in pieces:
            yield first + piece
            first = b""
    if first:
        yield first


async def _arrow(
    definition: StoreDefinition, scan: MergedScan, columns: Sequence[str] | None, stored: bool
) -> AsyncGenerator[bytes, None]:
    await loaded("stateline.rows.arrow_rows")
    from stateline.rows import arrow_rows

    schema = arrow_rows.arrow_schema(definition, columns)

    def made(entries: Any) -> bytes:  # of one store, so all of one shape
        return arrow_rows.stream_batch(arrow_rows.record_batch(definition, entries, schema, stored=stored))

    yield arrow_rows.stream_start(schema)
    async with aclosing(_pieces(scan, made)) as pieces:
        async for piece in pieces:
            yield piece
    yield STREAM_END


async def _pieces(scan: MergedScan, made: Callable[[list[Entry]], bytes]) -> AsyncGenerator[bytes, None]:
    pace = ScanPace()
    while entries := await scan.page(pace.rows, pace.most_bytes):
        with pace.step(len(entries)):
            piece = made(entries)
        observed().rows += len(entries)
        yield piece
        await let_others_in()  # a client that takes all at once must not keep the others waiting


async def entries_json(items: Sequence[T], shown: Callable[[T], Mapping[str, Any]]) -> orjson.Fragment:
    """Return the JSON array of these entries."""
    pieces = await in_steps(items, lambda some: orjson.dumps([shown(each) for each in some])[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


async def in_steps(items: Sequence[T], made: Callable[[Sequence[T]], bytes]) -> list[bytes]:
    """Make bytes of these entries, some at a time."""
    observed().rows += len(items)
    pace, pieces, at = ScanPace(), list[bytes](), 0
    while at < len(items):
        some = items[at : at + pace.rows]
        with pace.step(len(some)):
            pieces.append(made(some))
        at += len(some)
        if len(pieces) > 1 or at < len(items):
            await let_others_in()
    return pieces
