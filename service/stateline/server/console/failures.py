"""`GET /v1/console/failures`: the newest dead letters, and the record that each was made of.

    {"topic": name | null,    null: the application has no dead-letter topic
     "records": [{"at_ms", "error", "reason", "topic", "partition", "offset",    of the record that failed
                  "key", "value" (`record_members`), "headers", "left_out": [member, …]}]}    the newest first

At most one read of the log runs at once in a process: whoever asks meanwhile is told what it finds. What is too large
for a page is null, and named in `left_out`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.log.committed_records import records_between
from stateline.log.interface import Log, Record
from stateline.model.topology import Topology
from stateline.processing.failures import DEAD_LETTER, dead_letter_of
from stateline.processing.record_members import headers_of, members_of
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.guard.caller import require_everything
from stateline.server.serving import Serving
from stateline_store import LogUnavailableError, NotReadyError, StatelineError, TopicPartition

_DEFAULT, _MOST = 50, 200
_WITHIN_S = 3.0
_MOST_BYTES = 64 * 1024
# Of the log the last so many offsets of each partition, and then more: markers of transactions are between records.
_OFFSETS, _MORE = 2 * _MOST, 16

_log = logging.getLogger(__name__)


class ConsoleFailures:
    """The endpoint. For the event loop's thread."""

    def __init__(self, serving: Serving) -> None:
        self._topology, self._config = serving.topology, serving.config
        self._reading: asyncio.Task[list[Record]] | None = None

    def routes(self) -> list[BaseRoute]:
        """What to mount."""
        return [Route("/v1/console/failures", self.failures)]

    async def failures(self, request: Request) -> Response:
        """GET /v1/console/failures: up to `limit` of them. Raises `ForbiddenError` for a token that may not read every
        store, `NotReadyError` when the log does not answer in time."""
        require_everything(request, "Records that failed are")
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(("limit",))
        limit = arguments.integer("limit", _DEFAULT, 1, _MOST, "of the console")
        topic = self._config.dead_letter_topic
        records = [] if topic is None else await self._newest(topic)
        found = await asyncio.to_thread(_shown, self._topology, records[:limit])
        return json_response({"topic": topic, "records": found})

    async def _newest(self, topic: str) -> list[Record]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(_read, self._config, topic))
        try:
            return await asyncio.shield(self._reading)
        except StatelineError as error:
            _log.warning("Dead letters cannot be read: %s", error)  # its message names files and brokers
            raise NotReadyError(
                f"The topic {topic!r} cannot be read now, and the server's log says why: ask again in a moment."
            ) from error


def _read(config: Config, topic: str) -> list[Record]:
    """The newest records of this topic, none where it is not there; on a thread."""
    if not log_exists(config):
        return []
    until_s = time.monotonic() + _WITHIN_S
    with closing(configured_log(config, read_only=True)) as log, log.patience.for_all(_WITHIN_S):
        with closing(log.admin()) as admin:
            info = admin.topics([topic]).get(topic)
            if info is None:
                return []
            firsts = {place: first for place, (first, _) in admin.bounds(info.places).items()}
            ends = admin.committed_ends(info.places)
        return _newest_of(log, firsts, ends, until_s)


def _newest_of(
    log: Log, firsts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], until_s: float
) -> list[Record]:
    offsets, found = _OFFSETS, list[Record]()
    while True:
        bounds = {place: (max(firsts[place], end - offsets), end) for place, end in ends.items()}
        bounds = {place: (first, end) for place, (first, end) in bounds.items() if first < end}
        more = _between(log, bounds, until_s)
        is_whole = all(first == firsts[place] for place, (first, _) in bounds.items())
        if more is None:
            if not found:
                raise LogUnavailableError(f"The last records of {next(iter(bounds))} did not come in {_WITHIN_S:g} s.")
            return found
        if is_whole or len(more) >= _MOST:
            return more
        found = more
        offsets *= _MORE


def _between(log: Log, bounds: Mapping[TopicPartition, tuple[int, int]], until_s: float) -> list[Record] | None:
    """The records of these offsets, the newest first: of each partition by offset, between them by time. None where
    the time is over before they have come."""
    parts: defaultdict[int, list[Record]] = defaultdict(list)
    with closing(records_between(log, bounds, "ask again", silence_s=_WITHIN_S)) as records:
        for record in records:
            parts[record.partition].append(record)
            if time.monotonic() > until_s:
                return None
    newest = (reversed(part[-_MOST:]) for part in parts.values())
    return list(heapq.merge(*newest, key=lambda record: -record.timestamp_ms))[:_MOST]


def _shown(topology: Topology, records: Sequence[Record]) -> list[dict[str, Any]]:
    topics = topology.topics_known()
    found = []
    for record in records:
        letter = dead_letter_of(record) or {}
        topic = topics.get(str(letter.get("topic")))
        types = {"key": None, "value": None} if topic is None else {"key": topic.key, "value": topic.value}
        shown: dict[str, Any] = {
            "at_ms": None if record.timestamp_ms < 0 else record.timestamp_ms,
            "error": letter.get("exception"),
            "reason": letter.get("message"),
            **{name: letter.get(name) for name in ("topic", "partition", "offset")},
        }
        left_out = []
        for name, serde in types.items():
            data = record.key if name == "key" else record.value
            if data is not None and len(data) > _MOST_BYTES:
                left_out.append(name)
                data = None
            shown |= members_of(data, name, serde)
        own = [(name, value) for name, value in record.headers if not name.startswith(DEAD_LETTER)]
        found.append(shown | {"headers": headers_of(own), "left_out": left_out})
    return found
