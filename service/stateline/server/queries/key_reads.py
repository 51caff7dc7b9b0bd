"""`KeyReads`: what all reads of a store's keys with the same query string share. `point_reads` makes them."""

from __future__ import annotations

import orjson

from stateline.query.values import CopyStatus, PartitionAnswer, QueryRows, Value
from stateline.serde.plain import StringSerde
from stateline.server.contract.answers import found_reader, result_members, standing_members
from stateline.server.contract.arguments import read_key
from stateline.server.queries.requests import ReadRequest
from stateline.server.state.still import Still
from stateline.server.telemetry.request_counts import Answered

_ROUTE = "/v1/stores/{store}/keys/{key}"
_NO_ROWS = QueryRows([])


class KeyReads:
    """Reads of one store with one query string. Methods raise the `StatelineError` of what cannot be read or shown."""

    def __init__(self, request: ReadRequest, stills: dict[int, ShownStill]) -> None:
        """`stills` has the store's partitions, of all its query strings."""
        store, terms = request.store, request.terms
        self.request, self.store, self.stills = request, store, stills
        self.is_read_here = store.is_read_here(terms.isolation_level)
        self.is_bounded = not terms.bound.is_unbounded()
        self.answered = Answered(_ROUTE, store.name, terms.isolation_level.value, "ok")
        self.has_plain_keys = type(store.definition.key) is StringSerde
        """Whether a key of ASCII has the same bytes in a path and in the store."""
        self.partitions = store.placement.partitions
        self._begin = orjson.dumps(result_members(terms, {}))[:-1]
        self._members = found_reader(store.definition)
        self._shape = request.shape if request.shape.columns is not None else None
        self._has_details = request.shape.details

    def key(self, written: bytes) -> bytes:
        """Return a key, which a path has as ASCII, as its store has it."""
        return read_key("The key", written.decode("ascii"), self.store.definition.key, textual=True)

    def body(self, key: bytes, stored: Value, standing: bytes) -> bytes:
        """Return the body of an answer. `standing` is that of `standing_text`."""
        assert isinstance(stored, bytes), "a key-value store"
        found = self._members(key, stored)
        result = orjson.dumps(found if self._shape is None else self._shape.only(found))
        # Objects put together: `{"store":…`, `"found":…` and `"position":…}`.
        if self._has_details:
            return b"%b,%b,%b" % (self._begin, result[1:-1], standing)
        return b"%b,%b" % (self._begin, result[1:])


def standing_text(partition: int, answer: PartitionAnswer) -> bytes:
    """Return where the partition stands, as JSON without its first brace."""
    return orjson.dumps(standing_members({partition: answer}))[1:]


class ShownStill:
    """A partition that is still the same, and its `standing_text` for the answers of this node."""

    __slots__ = ("_partition", "copy", "node", "standing", "still")

    def __init__(self, partition: int, still: Still) -> None:
        self.still, self._partition = still, partition
        self.standing = b""
        self.copy: CopyStatus | None = None
        self.node: str | None = None

    def show(self, node: str | None) -> None:
        """Make `standing` again, for an answer of this node. Needed once per commit and staged record."""
        self.copy, self.node = self.still.copy, node
        answer = PartitionAnswer(_NO_ROWS, self.still.position, self.copy, node=node)
        self.standing = standing_text(self._partition, answer)
