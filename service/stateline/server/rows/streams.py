"""Entries as a stream, without paging: NDJSON or Arrow, a batch at a time, each when the client has taken the last.

The state is pinned for as long as the stream lasts, and let go of when the client leaves. What fails on the way breaks
the connection off: a stream that ends as HTTP says has all entries. What an answer carries beside its entries stands in
the headers `Stateline-Position`, `Stateline-Isolation-Level` and, with `allow_partial`, `Stateline-Failures`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stateline.model.store_definition import StoreDefinition
from stateline.query.values import Entry, Outcome, Terms, answers_of, failures_of, merged_position
from stateline.server.contract.observation import note_rows
from stateline.server.contract.problems import failures_json
from stateline.server.rows import ndjson_rows
from stateline.server.rows.columns import MEDIA_TYPE, STREAM_END
from stateline.server.state.merged_scan import MergedScan
from stateline.server.wire.loading import loaded

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", MEDIA_TYPE
_FORMATS = (JSON, NDJSON, ARROW)
_REFUSED = re.compile(r"(?:^|;)\s*q=0(?:\.0{0,3})?\s*(?:;|$)", re.IGNORECASE)  # RFC 9110, 12.4.2


def wanted_format(accept: str) -> str:
    """The first of the formats that an `Accept` header names, JSON when it names none. Of weights only 0 is looked at,
    which means: not this one."""
    return next((name for name in accepted(accept) if name in _FORMATS), JSON)


def accepted(header: str) -> list[str]:
    """What a header such as `Accept` or `Accept-Encoding` names and does not refuse, in order and in lower case."""
    parts = (part.partition(";") for part in header.split(","))
    return [name.strip().lower() for name, _, parameters in parts if _REFUSED.search(parameters) is None]


class OwningStream(StreamingResponse):
    """A stream that owns `resources`: what is to be let go of at its end. A client that takes nothing for `patience_s`
    is cut off: it would keep them, one of server.scans.max with it."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        resources: AsyncExitStack,
        patience_s: float,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        self._resources, self._patience_s = resources, patience_s
        super().__init__(chunks, media_type=media_type, headers=headers)

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
    media_type: str, definition: StoreDefinition, scan: MergedScan, *, with_key: bool
) -> AsyncGenerator[bytes, None]:
    """All entries of this scan in this format."""
    return _ndjson(definition, scan, with_key) if media_type == NDJSON else _arrow(definition, scan)


def headers_of(terms: Terms, outcomes: Mapping[int, Outcome]) -> dict[str, str]:
    """What an answer carries beside its entries."""
    position = merged_position(answers_of(outcomes).values())
    headers = {
        "Stateline-Position": orjson.dumps(position.to_json()).decode(),
        "Stateline-Isolation-Level": terms.isolation_level.value,
    }
    if failures := failures_of(outcomes):
        headers["Stateline-Failures"] = json.dumps(failures_json(failures))  # in ASCII
    return headers


async def _ndjson(definition: StoreDefinition, scan: MergedScan, with_key: bool) -> AsyncGenerator[bytes, None]:
    async with aclosing(_batches(scan)) as batches:
        async for entries in batches:
            yield ndjson_rows.lines(definition, entries, with_key=with_key)


async def _arrow(definition: StoreDefinition, scan: MergedScan) -> AsyncGenerator[bytes, None]:
    await loaded("stateline.server.rows.arrow_rows")
    from stateline.server.rows import arrow_rows

    schema = arrow_rows.arrow_schema(definition)
    yield arrow_rows.stream_start(schema)
    async with aclosing(_batches(scan)) as batches:
        async for entries in batches:
            rows: Any = entries  # of one store, so all of one shape
            yield arrow_rows.stream_batch(arrow_rows.record_batch(definition, rows, schema))
    yield STREAM_END


async def _batches(scan: MergedScan) -> AsyncGenerator[list[Entry], None]:
    while entries := await scan.batch():
        note_rows(len(entries))
        yield entries
        await asyncio.sleep(0)  # a client that takes all at once must not keep the others waiting
