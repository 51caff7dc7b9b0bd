"""`PointReads`: ``GET /v1/stores/{store}/keys/{key}`` of committed state, answered before any routing.

Most requests are of this kind, and what a framework does between socket and store takes ten times as long as the read.
So an answer that can be given at once is given here: the store is on disk and read as committed, the key is in its home
partition, and the bound is met. Whatever else a request may be is declined, errors included, and takes the way of all
others (`routes`), which reads it anew: nothing behaves in a way that it does not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
from starlette.types import Scope

from stateline.query import Failure, KeysQuery, home_partition
from stateline.server.answers import body_of, found_members
from stateline.server.arguments import COMMON, MAX_URL_BYTES, Arguments, from_query_string, read_key
from stateline.server.asked import Asked
from stateline.server.measuring import Measuring
from stateline.server.metrics import Answered
from stateline.server.partitions import ServedStore
from stateline.server.serving import Serving
from stateline_store import IsolationLevel, StatelineError

_LONGEST = MAX_URL_BYTES // 2  # of a path, and of a query string
# Query strings that are remembered, with what they ask for: most clients send the same one again and again.
_MOST_REMEMBERED = 1000
_LONGEST_REMEMBERED = 200

_ROUTE = "/v1/stores/{store}/keys/{key}"

Ask = Callable[[ServedStore, Arguments], Asked]
Admit = Callable[[Scope, str], str]


class PointReads:
    """Of one server process; for the event loop's thread. `ask` says what a request demands, as for every query;
    `admit(scope, store)` who asks, by the name of a token, empty where there are none, or raises."""

    def __init__(self, serving: Serving, ask: Ask, measuring: Measuring, admit: Admit) -> None:
        self._serving = serving
        self._ask = ask
        self._measuring = measuring
        self._admit = admit
        self._remembered: dict[tuple[str, bytes], tuple[ServedStore, Asked | None]] = {}

    def answer(self, scope: Scope) -> bytes | None:
        """The body of the answer, which is JSON with status 200; None to have the request take the way of all others.
        Raises nothing that is the client's doing."""
        raw: bytes = scope["raw_path"]
        segments = raw.split(b"/")
        if len(segments) != 6 or segments[4] != b"keys" or segments[1] != b"v1" or segments[2] != b"stores":
            return None
        if scope["method"] != "GET" or scope["root_path"] or b"%" in raw or len(raw) > _LONGEST:
            return None
        began_s = time.perf_counter()
        try:
            name = segments[3].decode("ascii")
            token = self._admit(scope, name)
            asked = self._asked(name, scope["query_string"])
            body = None if asked is None else self._read(asked, segments[5].decode("ascii"))
        except (StatelineError, UnicodeDecodeError):
            return None
        if asked is None or body is None:
            return None
        answered = Answered(_ROUTE, asked.store.name, asked.terms.isolation_level.value, "ok")
        self._measuring.tell("GET", answered, 200, time.perf_counter() - began_s, 1, len(body), token)
        return body

    def _read(self, asked: Asked, written: str) -> bytes | None:
        store, definition = asked.store, asked.store.definition
        key = read_key("The key", written, definition.key, textual=True)
        partition = home_partition(key, store.placement.partitions)
        outcome = self._serving.partitions.ask(store, asked.terms, partition, KeysQuery((key,)))
        if isinstance(outcome, Failure) or not outcome.rows.entries:
            return None
        ((_, stored),) = outcome.rows.entries
        return orjson.dumps(body_of(asked.terms, {partition: outcome}, found_members(definition, key, stored)))

    def _asked(self, name: str, query_string: bytes) -> Asked | None:
        """What is demanded; None when it cannot be answered here. Raises as the reading of parameters does."""
        if self._serving.stopping:
            return None
        store = self._serving.store(name)
        of_store, asked = self._remembered.get((name, query_string), (None, None))
        if of_store is not store:
            asked = self._asked_anew(store, query_string)
            if len(query_string) <= _LONGEST_REMEMBERED:
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[name, query_string] = store, asked
        return asked

    def _asked_anew(self, store: ServedStore, query_string: bytes) -> Asked | None:
        definition = store.definition
        if not definition.key_value or not definition.persistent or len(query_string) > _LONGEST:
            return None
        arguments = Arguments(from_query_string(query_string))
        arguments.refuse_others(COMMON)
        asked = self._ask(store, arguments)
        everywhere = asked.partitions == store.partitions
        return asked if everywhere and asked.terms.isolation_level is IsolationLevel.READ_COMMITTED else None
