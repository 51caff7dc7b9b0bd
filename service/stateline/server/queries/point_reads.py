"""`PointReads`: ``GET /v1/stores/{store}/keys/{key}`` of committed state, answered before any routing.

Most requests are of this kind, and what a framework does between socket and store takes ten times as long as the read.
So an answer that can be given at once is given here: the store is on disk and read as committed, the key is in its home
partition, and the bound is met. Whatever else a request may be is declined, errors included, and takes the way of all
others (`routes`), which reads it anew: nothing behaves in a way that it does not there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import orjson
from starlette.types import Scope

from stateline.query.values import CopyStatus, PartitionAnswer, home_partition
from stateline.server.contract.answers import found_members, result_members, standing_members
from stateline.server.contract.arguments import Arguments, read_key
from stateline.server.contract.parameters import COMMON
from stateline.server.contract.written_arguments import MAX_URL_BYTES, from_query_string
from stateline.server.queries.requests import ReadRequest, RequestReader
from stateline.server.serving import Serving
from stateline.server.state.served_stores import ServedStore
from stateline.server.telemetry.measuring import Measuring
from stateline.server.telemetry.request_counts import Answered
from stateline_store import IsolationLevel, KeyQuery, Position, StatelineError

_LONGEST = MAX_URL_BYTES // 2  # of a path, and of a query string
# Query strings that are remembered, with what they ask for: most clients send the same one again and again.
_MOST_REMEMBERED = 1000
_LONGEST_REMEMBERED = 200

_ROUTE = "/v1/stores/{store}/keys/{key}"
# Without what is percent-encoded: decoding has rules of its own.
_PATH = re.compile(rb"/v1/stores/([^/%]+)/keys/([^/%]*)")

Admit = Callable[[Scope, str], str]


class PointReads:
    """Of one server process; for the event loop's thread. `requests` reads what one demands, as for every
    query; `admit(scope, store)` who asks, by the name of a token, empty where there are none, or raises."""

    def __init__(self, serving: Serving, requests: RequestReader, measuring: Measuring, admit: Admit) -> None:
        self._serving = serving
        self._requests = requests
        self._measuring = measuring
        self._admit = admit
        self._remembered: dict[tuple[str, bytes], tuple[ServedStore, ReadRequest | None]] = {}
        # Where a store's partition stood last, and how that is shown.
        self._standings: dict[tuple[str, int], tuple[Position, CopyStatus, bytes]] = {}

    def answer(self, scope: Scope) -> bytes | None:
        """The body of the answer, which is JSON with status 200; None to have the request take the way of all others.
        Raises nothing that is the client's doing."""
        raw: bytes = scope["raw_path"]
        found = _PATH.fullmatch(raw)
        if found is None or scope["method"] != "GET" or scope["root_path"] or len(raw) > _LONGEST:
            return None
        began_s = time.perf_counter()
        try:
            name = found[1].decode("ascii")
            token = self._admit(scope, name)
            read = self._request(name, scope["query_string"])
            body = None if read is None else self._found(read, found[2].decode("ascii"))
        except (StatelineError, UnicodeDecodeError):
            return None
        if read is None or body is None:
            return None
        answered = Answered(_ROUTE, read.store.name, read.terms.isolation_level.value, "ok")
        self._measuring.tell("GET", answered, 200, time.perf_counter() - began_s, 1, len(body), token)
        return body

    def _found(self, read: ReadRequest, written: str) -> bytes | None:
        store, definition = read.store, read.store.definition
        key = read_key("The key", written, definition.key, textual=True)
        partition = home_partition(key, store.placement.partitions)
        answer = self._serving.partitions.ask(store, read.terms, partition, KeyQuery(key))
        if not isinstance(answer, PartitionAnswer) or not answer.rows.entries:
            return None
        ((_, stored),) = answer.rows.entries
        result = orjson.dumps(result_members(read.terms, found_members(definition, key, stored)))
        # Two objects put together: `{"store":…` and `,"position":…}`.
        return b"%b,%b" % (result[:-1], self._standing(store.name, partition, answer))

    def _standing(self, store: str, partition: int, answer: PartitionAnswer) -> bytes:
        """Where the partition stands, as JSON without its first brace: written once per commit and staged record."""
        known = self._standings.get((store, partition))
        if known is not None and known[0] is answer.position and known[1] == answer.copy:
            return known[2]
        text = orjson.dumps(standing_members({partition: answer}))[1:]
        self._standings[store, partition] = answer.position, answer.copy, text
        return text

    def _request(self, name: str, query_string: bytes) -> ReadRequest | None:
        """What is demanded; None when it cannot be answered here. Raises as the reading of parameters does."""
        if self._serving.stopping:
            return None
        store = self._serving.stores.get(name)
        of_store, read = self._remembered.get((name, query_string), (None, None))
        if of_store is not store:
            read = self._request_anew(store, query_string)
            if len(query_string) <= _LONGEST_REMEMBERED:
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[name, query_string] = store, read
        return read

    def _request_anew(self, store: ServedStore, query_string: bytes) -> ReadRequest | None:
        definition = store.definition
        if not definition.key_value or not definition.persistent or len(query_string) > _LONGEST:
            return None
        arguments = Arguments(from_query_string(query_string))
        arguments.refuse_others(COMMON)
        read = self._requests.read(store, arguments)
        everywhere = read.partitions == store.partitions
        return read if everywhere and read.terms.isolation_level is IsolationLevel.READ_COMMITTED else None
