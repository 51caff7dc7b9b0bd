"""`GET /v1/console/failures`: the newest dead letters, and the records that failed.

    {"topic": name | null,    null: the application has no dead-letter topic
     "records": [{"at_ms", "error", "reason", "trace", "topic", "partition", "offset",    of the record that failed
                  "key", "value" (`record_members`), "headers", "left_out": [member, …]}]}    the newest first

A process reads the log once at a time, and requests that come meanwhile share the result. A member that is too large
for a page is null, and named in `left_out`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stateline.config.settings import Config
from stateline.model.topology import Topology
from stateline.processes.seldom import seldom
from stateline.processing.failures import DEAD_LETTER, dead_letter_of
from stateline.serde.record_members import headers_of, members_of
from stateline.server.console.newest_records import MOST, KeptRecord, newest_records
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.hidden_paths import trace_without_paths, without_paths
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.guard.caller import require_everything
from stateline_store import NotReadyError, StatelineError

_DEFAULT = 50

_log = seldom(__name__)


class ConsoleFailures:
    """The endpoint. For the event loop's thread."""

    def __init__(self, topology: Topology, config: Config) -> None:
        self._topology, self._config = topology, config
        self._reading: asyncio.Task[list[KeptRecord]] | None = None

    async def failures(self, request: Request) -> Response:
        """Return up to `limit` dead letters.

        Raises `ForbiddenError` for a token that may not read every store, `NotReadyError` if the log does not answer in
        time.
        """
        require_everything(request, "Records that failed are")
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(("limit",))
        limit = arguments.integer("limit", _DEFAULT, 1, MOST, "of the console")
        topic = self._config.dead_letter_topic
        records = [] if topic is None else await self._newest(topic)
        found = await asyncio.to_thread(_shown, self._topology, records[:limit])
        return json_response({"topic": topic, "records": found})

    async def _newest(self, topic: str) -> list[KeptRecord]:
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.create_task(asyncio.to_thread(newest_records, self._config, topic))
            reading.add_done_callback(self._forget)
        try:
            return await asyncio.shield(reading)
        except StatelineError as error:
            _log.warning("Dead letters cannot be read: %s", error)  # its message names files and brokers
            raise NotReadyError(
                f"The topic {topic!r} cannot be read now, and the server's log says why: ask again in a moment."
            ) from error

    def _forget(self, _: asyncio.Task[list[KeptRecord]]) -> None:
        self._reading = None  # it would keep the read records until the next request


def _shown(topology: Topology, records: Sequence[KeptRecord]) -> list[dict[str, Any]]:
    topics = topology.topics_known()
    found = []
    for record, left_out, _ in records:
        letter = dead_letter_of(record) or {}
        topic = topics.get(str(letter.get("topic")))
        own = [(name, value) for name, value in record.headers if not name.startswith(DEAD_LETTER)]
        found.append(
            {
                "at_ms": None if record.timestamp_ms < 0 else record.timestamp_ms,
                "error": letter.get("exception"),
                "reason": None if letter.get("message") is None else without_paths(str(letter["message"])),
                "trace": None if letter.get("stacktrace") is None else trace_without_paths(str(letter["stacktrace"])),
                **{name: letter.get(name) for name in ("topic", "partition", "offset")},
                **members_of(record.key, "key", None if topic is None else topic.key),
                **members_of(record.value, "value", None if topic is None else topic.value),
                "headers": None if "headers" in left_out else headers_of(own),
                "left_out": left_out,
            }
        )
    return found
