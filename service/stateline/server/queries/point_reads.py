"""`PointReads`: ``GET /v1/stores/{store}/keys/{key}``, answered before any routing.

Most requests are of this kind, and a framework takes ten times as long as the read. So this module answers what it can
at once: a committed read of a store on disk, if the key is in its home partition and the bound is met. It asks a worker
here for uncommitted rows and stores in memory. It asks the node that owns the key by the client's own URL, if that node
answers at once, and returns its answer unchanged. It declines everything else, errors included: `routes` then reads the
request again. So no request behaves differently here.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from starlette.types import Scope

from stateline.query.kinds import BY_WORD
from stateline.query.values import CopyStatus, Outcome, PartitionAnswer, Value
from stateline.serde.partitioner import home_partition
from stateline.serde.registered import awaits_registry
from stateline.server.contract import request_id
from stateline.server.contract.answers import found_members, result_members, standing_members
from stateline.server.contract.arguments import Arguments, read_key
from stateline.server.contract.formats import JSON
from stateline.server.contract.parameters import COMMON
from stateline.server.contract.request_id import AskedBy
from stateline.server.contract.written_arguments import MAX_URL_BYTES, from_query_string
from stateline.server.guard.proofs import Proof, Shown
from stateline.server.guard.tokens import bearer_token, hash_of
from stateline.server.nodes.link import Link
from stateline.server.nodes.nodes import Nodes
from stateline.server.queries.requests import ReadRequest, RequestReader, columns_of
from stateline.server.routing.cluster_copies import ClusterCopies, takes_standbys
from stateline.server.routing.for_nodes import AnswersForNodes
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.partitions import Partitions, Still
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.state.workers import Workers
from stateline.server.telemetry.measuring import Measuring
from stateline.server.telemetry.request_counts import Answered
from stateline_store import KeyQuery, Position, StatelineError

_LONGEST = MAX_URL_BYTES // 2  # of a path, and of a query string
# Query strings that are remembered, with what they ask for: most clients send the same one again and again.
_MOST_REMEMBERED = 1000
_LONGEST_REMEMBERED = 200

_ROUTE = "/v1/stores/{store}/keys/{key}"
# Without what is percent-encoded: decoding has rules of its own.
_PATH = re.compile(rb"/v1/stores/([^/%]+)/keys/([^/%]*)")

# The request that a worker or another node answers: its answer comes later.
LATER = b""

Admit = Callable[[Scope, str], str]


@dataclass(eq=False, repr=False)
class PointReads:
    """One per server process, for the event loop's thread.

    `_admit(scope, store)` returns the name of the client's token, empty if there are no tokens, or raises. `answer`
    needs it.
    """

    _stores: ServedStores
    _partitions: Partitions
    _workers: Workers
    _commits: CommitSignal
    _nodes: Nodes | None
    _cluster: ClusterCopies | None
    _for_nodes: AnswersForNodes
    _requests: RequestReader
    _measuring: Measuring
    _admit: Admit | None
    _has_tokens: bool

    def __post_init__(self) -> None:
        self._remembered: dict[tuple[str, bytes], tuple[ServedStore, ReadRequest | None]] = {}
        # Where a store's partition stood last, and how that is shown.
        self._standings: dict[tuple[str, int], tuple[Position, CopyStatus, str | None, bytes]] = {}
        self._stills: dict[tuple[str, int], tuple[ServedStore, Still, str | None, bytes]] = {}

    def answer(self, scope: Scope, later: Callable[[bytes | None], None]) -> bytes | None:
        """Return the body of the answer, which is JSON with status 200, or None to have `routes` answer.

        Returns `LATER` if a worker or another node is asked: then `later` is called once, with the body or None. Raises
        nothing for a client's mistake.
        """
        assert self._admit is not None
        raw: bytes = scope["raw_path"]
        found = _PATH.fullmatch(raw)
        if found is None or scope["method"] != "GET" or scope["root_path"] or len(raw) > _LONGEST:
            return None
        began_s = time.perf_counter()
        try:
            name = found[1].decode("ascii")
            token = self._admit(scope, name)
            read = self._request(name, scope["query_string"])
            if read is None:
                return None
            key, partition = _of_key(read.store, found[2].decode("ascii"))
            owner = None if self._cluster is None else self._cluster.owner_elsewhere(read.store, partition)
            if _is_read_here(read) and (owner is None or takes_standbys(read.terms, partition)):
                body = self._found(read, key, partition)
                if body is not None:
                    self._tell(read, body, began_s, scope, token)
                if body is not None or owner is None:
                    return body

            def answered(body: bytes | None) -> None:
                if body is not None:
                    self._tell(read, body, began_s, scope, token)
                later(body)

            if owner is None:
                return self._ask_worker(read, key, partition, answered)
            return self._ask_node(owner, scope, answered) if _is_read_here(read) else None
        except (StatelineError, UnicodeDecodeError):
            return None

    def answer_for_node(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        """Return the body for another node, from a copy here, or None."""
        began_s = time.perf_counter()
        found = _PATH.fullmatch(raw := path.encode())
        if found is None or len(raw) > _LONGEST:
            return None
        try:
            name = found[1].decode("ascii")
            self._for_nodes.check(shown, name)
            read = self._request(name, query.encode("ascii"))
            if read is None or not _is_read_here(read):
                return None
            body = self._found(read, *_of_key(read.store, found[2].decode("ascii")))
            if body is not None:
                seconds = time.perf_counter() - began_s
                self._measuring.tell_node(asked_by, "GET", _answered(read), 200, seconds, 1, len(body))
            return body
        except (StatelineError, UnicodeError):
            return None

    def _ask_worker(
        self, read: ReadRequest, key: bytes, partition: int, later: Callable[[bytes | None], None]
    ) -> bytes | None:
        """Return `LATER` if a worker here is asked; None if none has the partition."""
        store = read.store
        worker = self._workers.live_owner(store.placement.task_id(partition))
        if worker is None:
            return None

        def answered(outcome: Outcome | None) -> None:
            body = None
            if isinstance(outcome, PartitionAnswer) and outcome.copy.served_by == "active" and outcome.rows.entries:
                ((_, value),) = outcome.rows.entries
                outcome.node = None if self._nodes is None else self._nodes.shown
                with contextlib.suppress(StatelineError):  # it cannot be shown: the routes say why
                    body = _body(read, key, value, _standing_text(partition, outcome))
            later(body)

        worker.point(read.terms, partition, KeyQuery(key), store.definition.description, answered)
        return LATER

    def _ask_node(self, owner: Link, scope: Scope, later: Callable[[bytes | None], None]) -> bytes | None:
        """Return `LATER` if this node is asked; None if it declares the store differently."""
        if not owner.declares_the_same:
            return None
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        owner.point(path, query, self._shown(scope), scope[request_id.KEY], later)
        return LATER

    def _shown(self, scope: Scope) -> Shown | None:
        if not self._has_tokens:
            return None
        token = bearer_token(scope["headers"])
        return Shown(hash_of(token), token)

    def _tell(self, read: ReadRequest, body: bytes, began_s: float, scope: Scope, token: str) -> None:
        self._measuring.tell(scope, token, _answered(read), 200, time.perf_counter() - began_s, 1, len(body))

    def _found(self, read: ReadRequest, key: bytes, partition: int) -> bytes | None:
        store, place = read.store, (read.store.name, partition)
        node = None if self._nodes is None else self._nodes.shown
        known = self._stills.get(place)
        if known is not None and known[0] is store and known[2] == node:
            _, still, _, standing = known
            found = still.value(key)
            if found is not None:
                stored = found[0]
                if stored is None or not read.terms.bound.is_met(still.position, partition):
                    return None
                return _body(read, key, stored, standing)
        answer = self._partitions.ask(store, read.terms, partition, KeyQuery(key))
        if not isinstance(answer, PartitionAnswer) or not answer.rows.entries:
            return None
        ((_, value),) = answer.rows.entries
        answer.node = node
        standing = self._standing(store.name, partition, answer)
        if (now := self._partitions.still(store, partition, answer)) is not None:
            self._stills[place] = store, now, node, standing
        return _body(read, key, value, standing)

    def _standing(self, store: str, partition: int, answer: PartitionAnswer) -> bytes:
        """Return `_standing_text`, made once per commit and staged record."""
        known = self._standings.get((store, partition))
        if known is not None and known[0] is answer.position and known[1] == answer.copy and known[2] == answer.node:
            return known[3]
        text = _standing_text(partition, answer)
        self._standings[store, partition] = answer.position, answer.copy, answer.node, text
        return text

    def _request(self, name: str, query_string: bytes) -> ReadRequest | None:
        """Return the request, or None if it cannot be answered here. Raises like the parameters' parser."""
        if self._commits.closed:
            return None
        store = self._stores.get(name)
        if awaits_registry(store.definition.key) or store.stopped is not None:
            return None  # not on the event loop; and the routes mark what no worker runs
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
        if not definition.key_value or len(query_string) > _LONGEST:
            return None
        arguments = Arguments(from_query_string(query_string))
        arguments.refuse_others(COMMON)
        read = self._requests.read(store, arguments)
        if store.is_global and not read.terms.bound.is_unbounded():
            return None  # which is one of all partitions of its topic
        read.shape.check_columns(columns_of(BY_WORD["key"], definition))
        if read.shape.media_type not in (None, JSON):
            return None
        return read if read.partitions == store.partitions else None


def _is_read_here(read: ReadRequest) -> bool:
    return read.store.is_read_here(read.terms.isolation_level)


def _standing_text(partition: int, answer: PartitionAnswer) -> bytes:
    """Return where the partition stands, as JSON without its first brace."""
    return orjson.dumps(standing_members({partition: answer}))[1:]


def _body(read: ReadRequest, key: bytes, stored: Value, standing: bytes) -> bytes:
    found = read.shape.only(found_members(read.store.definition, key, stored))
    result = orjson.dumps(result_members(read.terms, found))
    if not read.shape.details:
        return result
    # Two objects put together: `{"store":…` and `,"position":…}`.
    return b"%b,%b" % (result[:-1], standing)


def _answered(read: ReadRequest) -> Answered:
    return Answered(_ROUTE, read.store.name, read.terms.isolation_level.value, "ok")


def _of_key(store: ServedStore, written: str) -> tuple[bytes, int]:
    """Return a key as its store has it, and its partition. Raises like `read_key`."""
    key = read_key("The key", written, store.definition.key, textual=True)
    return key, home_partition(key, store.placement.partitions)
