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
from functools import partial
from typing import TypeVar

from starlette.types import Scope

from stateline.query.kinds import BY_WORD
from stateline.query.values import Outcome, PartitionAnswer
from stateline.serde.partitioner import home_partition
from stateline.serde.registered import awaits_registry
from stateline.server.contract import request_id
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.formats import JSON
from stateline.server.contract.parameters import COMMON
from stateline.server.contract.request_id import AskedBy
from stateline.server.contract.written_arguments import MAX_URL_BYTES, from_query_string
from stateline.server.guard.access import Admission, Admit
from stateline.server.guard.proofs import Proof, Shown
from stateline.server.guard.tokens import bearer_token, hash_of
from stateline.server.nodes.link import Link
from stateline.server.nodes.nodes import Nodes
from stateline.server.queries.key_reads import KeyReads, ShownStill, standing_text
from stateline.server.queries.requests import ReadRequest, RequestReader, columns_of
from stateline.server.routing.cluster_copies import ClusterCopies, takes_standbys
from stateline.server.routing.for_nodes import AnswersForNodes
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.state.workers import Workers
from stateline.server.telemetry.measuring import Measuring
from stateline.server.wire.repeated_request import Client, RepeatedRequest, Repetition
from stateline_store import KeyQuery, StatelineError

_LONGEST = MAX_URL_BYTES // 2  # of a path, and of a query string
# Query strings and repeated requests that are remembered: most clients send the same ones again and again.
_MOST_REMEMBERED = 1000
_LONGEST_REMEMBERED, _LONGEST_SHARED = 200, 2000  # bytes: of a query string, and of it with the headers

# Without what is percent-encoded: decoding has rules of its own.
_PATH = re.compile(rb"/v1/stores/([^/%]+)/keys/([^/%]*)")

K = TypeVar("K")
V = TypeVar("V")

# The request that a worker or another node answers: its answer comes later.
LATER = b""


@dataclass(eq=False, repr=False)
class PointReads:
    """One per server process, for the event loop's thread. `answer` and `repeated` need `_admit`."""

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
        self._remembered: dict[tuple[str, bytes], tuple[ServedStore, KeyReads | None]] = {}
        self._repetitions: dict[RepeatedRequest, tuple[tuple[int, Admission], Repetition]] = {}
        # By store: its partitions that are still the same as in their last answer.
        self._stills: dict[str, tuple[ServedStore, dict[int, ShownStill]]] = {}

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
            token, _ = self._admit(scope, name)
            reads = self._reads(name, scope["query_string"])
            if reads is None:
                return None
            key = reads.key(found[2])
            partition = home_partition(key, reads.partitions)
            owner = None if self._cluster is None else self._cluster.owner_elsewhere(reads.store, partition)
            if reads.is_read_here and (owner is None or takes_standbys(reads.request.terms, partition)):
                body = self._found(reads, key, partition, time.monotonic())
                if body is not None:
                    self._tell(reads, body, began_s, scope, token)
                if body is not None or owner is None:
                    return body

            def answered(body: bytes | None) -> None:
                if body is not None:
                    self._tell(reads, body, began_s, scope, token)
                later(body)

            if owner is None:
                return self._ask_worker(reads, key, partition, answered)
            return self._ask_node(owner, scope, answered) if reads.is_read_here else None
        except (StatelineError, UnicodeDecodeError):
            return None

    def repeated(self, request: RepeatedRequest, scope: Scope) -> Repetition | None:
        """Return what answers the repetitions of a request, which was answered at once. All connections that send the
        same share it, so that its memory is at hand. Raises nothing for a client's mistake."""
        assert self._admit is not None
        known, found = self._repetitions.get(request), _PATH.fullmatch(scope["raw_path"])
        if known is not None and self._is_unchanged(*known[0]):
            return known[1]
        try:
            name = "" if found is None else found[1].decode("ascii")
            reads, admission = self._reads(name, scope["query_string"]), self._admit(scope, name)
        except (StatelineError, UnicodeDecodeError):
            return None
        if reads is None or not reads.is_read_here:
            return None
        of, sent_id = (self._stores.changes, admission), request_id.sent_id(scope["headers"])
        repetition = Repetition(request, partial(self._answer_key, reads, of, scope), sent_id)
        if len(request.behind) <= _LONGEST_SHARED:
            _remember(self._repetitions, request, (of, repetition))
        return repetition

    def _is_unchanged(self, changes: int, admission: Admission) -> bool:
        is_valid = admission.is_valid
        return not self._commits.closed and self._stores.changes == changes and (is_valid is None or is_valid())

    def _answer_key(
        self, reads: KeyReads, of: tuple[int, Admission], scope: Scope, written: bytes, number: str, client: Client
    ) -> bytes | None:
        """Return the body for this key, which is ASCII and not percent-encoded (`Repetition.answer`)."""
        began_s = time.monotonic()
        if not self._is_unchanged(*of):
            return None
        try:
            key = written if reads.has_plain_keys else reads.key(written)
            partition = home_partition(key, reads.partitions)
            if self._cluster is not None and self._cluster.owner_elsewhere(reads.store, partition) is not None:
                return None
            body = self._found(reads, key, partition, began_s)
        except StatelineError:
            return None
        if body is None:
            return None
        seconds = time.monotonic() - began_s
        if self._measuring.observe is not None:
            self._measuring.observe(reads.answered, seconds, len(body), 1)
        else:
            own = {**scope, "client": client, request_id.KEY: number}
            self._measuring.tell(own, of[1].token, reads.answered, 200, seconds, 1, len(body))
        return body

    def answer_for_node(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        """Return the body for another node, from a copy here, or None."""
        began_s = time.perf_counter()
        found = _PATH.fullmatch(raw := path.encode())
        if found is None or len(raw) > _LONGEST:
            return None
        try:
            name = found[1].decode("ascii")
            self._for_nodes.check(shown, name)
            reads = self._reads(name, query.encode("ascii"))
            if reads is None or not reads.is_read_here:
                return None
            key = reads.key(found[2])
            body = self._found(reads, key, home_partition(key, reads.partitions), time.monotonic())
            if body is not None:
                seconds = time.perf_counter() - began_s
                self._measuring.tell_node(asked_by, "GET", reads.answered, 200, seconds, 1, len(body))
            return body
        except (StatelineError, UnicodeError):
            return None

    def _ask_worker(
        self, reads: KeyReads, key: bytes, partition: int, later: Callable[[bytes | None], None]
    ) -> bytes | None:
        """Return `LATER` if a worker here is asked; None if none has the partition."""
        store = reads.store
        worker = self._workers.live_owner(store.placement.task_id(partition))
        if worker is None:
            return None

        def answered(outcome: Outcome | None) -> None:
            body = None
            if isinstance(outcome, PartitionAnswer) and outcome.copy.served_by == "active" and outcome.rows.entries:
                ((_, value),) = outcome.rows.entries
                outcome.node = None if self._nodes is None else self._nodes.shown
                with contextlib.suppress(StatelineError):  # it cannot be shown: the routes say why
                    body = reads.body(key, value, standing_text(partition, outcome))
            later(body)

        worker.point(reads.request.terms, partition, KeyQuery(key), store.definition.description, answered)
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

    def _tell(self, reads: KeyReads, body: bytes, began_s: float, scope: Scope, token: str) -> None:
        self._measuring.tell(scope, token, reads.answered, 200, time.perf_counter() - began_s, 1, len(body))

    def _found(self, reads: KeyReads, key: bytes, partition: int, now_s: float) -> bytes | None:
        store, shown = reads.store, reads.stills.get(partition)
        node = None if self._nodes is None else self._nodes.shown
        if shown is not None and (found := shown.still.value(key, now_s)) is not None:
            bound = reads.request.terms.bound
            if found[0] is None or (reads.is_bounded and not bound.is_met(shown.still.position, partition)):
                return None
            if shown.copy is not shown.still.copy or shown.node != node:
                shown.show(node)
            return reads.body(key, found[0], shown.standing)
        answer = self._partitions.ask(store, reads.request.terms, partition, KeyQuery(key))
        if not isinstance(answer, PartitionAnswer) or not answer.rows.entries:
            return None
        ((_, value),) = answer.rows.entries
        answer.node = node
        still = self._partitions.still(store, partition, answer)
        if still is not None:
            reads.stills[partition] = ShownStill(partition, still)
        return reads.body(key, value, standing_text(partition, answer))

    def _stills_of(self, store: ServedStore) -> dict[int, ShownStill]:
        known = self._stills.get(store.name)
        if known is None or known[0] is not store:
            known = self._stills[store.name] = store, {}
        return known[1]

    def _reads(self, name: str, query_string: bytes) -> KeyReads | None:
        """Return the reads of a store, or None if they cannot be answered here. Raises like the parameters' parser."""
        if self._commits.closed:
            return None
        store = self._stores.get(name)
        if awaits_registry(store.definition.key) or store.stopped is not None:
            return None  # not on the event loop; and the routes mark what no worker runs
        of_store, reads = self._remembered.get((name, query_string), (None, None))
        if of_store is not store:
            request = self._request_anew(store, query_string)
            reads = None if request is None else KeyReads(request, self._stills_of(store))
            if len(query_string) <= _LONGEST_REMEMBERED:
                _remember(self._remembered, (name, query_string), (store, reads))
        return reads

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


def _remember(known: dict[K, V], key: K, value: V) -> None:
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known[key] = value
