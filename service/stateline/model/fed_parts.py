"""The stores and repartition topics that a topic's input goes into. A group notes them with its offsets. Pure.

The **parts** of a topic are the stores that its records go into, and the repartition topics that its processors write.
A store that they reach through repartition topics is a part of its own, whatever the topics' names are. Tables are no
parts: their own offsets say how far they have come.

Each commit of an offset notes the parts that have seen the input before it. A part of an earlier commit that the
application does not have now is noted with the offset at which it left, until the application has it again.

    note   := entry ("," entry)*, or nothing
    entry  := digest of a part that has seen everything | digest "@" the next offset that a part which left has not seen
    digest := the first 6 characters of the base64 (of URLs) of the SHA-256 of "store NAME", of "topic NAME", or of
              "through NAME" for a store that is reached through repartition topics

In topics and on disk: never change.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from stateline.model.topology import Subtopology, Topology

# A broker takes 4,096 bytes of metadata by default (`offset.metadata.max.bytes`), with the client's id in them.
_MAX_CHARACTERS = 3_000
_DIGEST_CHARACTERS = 6


PartKind = Literal["store", "topic", "through"]


class FedPart(NamedTuple):
    """A store or a repartition topic that a topic's records go into. The kind "through" is a store that they reach
    through repartition topics."""

    name: str
    kind: PartKind = "store"

    @property
    def digest(self) -> str:
        return _digest(f"{self.kind} {self.name}")


def parts_of(topology: Topology) -> dict[str, tuple[FedPart, ...]]:
    """Return the parts of each source topic, by its name."""
    return {
        topic.name: _parts(topology, subtopology, topic.name)
        for subtopology in topology.subtopologies
        for topic in subtopology.sources
    }


def _parts(topology: Topology, subtopology: Subtopology, topic: str) -> tuple[FedPart, ...]:
    written = [to.name for reader in subtopology.readers(topic) for to in reader.forwards if to.internal]
    topics = [FedPart(name, "topic") for name in dict.fromkeys(written)]
    reached = dict.fromkeys(store for each in topics for store in filled_through(topology, each.name))
    return (*map(FedPart, _counting(subtopology, topic)), *topics, *(FedPart(store, "through") for store in reached))


def filled_through(topology: Topology, repartition: str) -> list[str]:
    """Return the stores that this repartition topic feeds, also through others; none if only functions read it."""
    topics, stores = [repartition], list[str]()
    for topic in topics:  # it grows
        for subtopology in topology.subtopologies:
            stores += _counting(subtopology, topic)
            written = [to for reader in subtopology.readers(topic) for to in reader.forwards if to.internal]
            topics += [to.name for to in written if to.name not in topics]
    return list(dict.fromkeys(stores))


def _counting(subtopology: Subtopology, topic: str) -> list[str]:
    tables = {table.name for table in subtopology.stores if table.source is not None}
    return [name for name in subtopology.stores_fed_by(topic) if name not in tables]


@dataclass(frozen=True, slots=True)
class FedParts:
    """A note. `has_all` are the digests of parts that have seen all input before the offset; `left` has the next offset
    of others."""

    has_all: frozenset[str] = frozenset()
    left: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, text: str | None) -> FedParts | None:
        """Read the text of `after`. None for an empty or other text."""
        if text is None:
            return None
        entries = [entry.partition("@") for entry in text.split(",") if entry]
        if any(len(digest) != _DIGEST_CHARACTERS or bool(at) != is_number(left) for digest, at, left in entries):
            return None
        return cls(
            frozenset(digest for digest, at, _ in entries if not at),
            {digest: int(left) for digest, at, left in entries if at},
        )


def is_number(text: str) -> bool:
    """Whether this is a decimal number without a sign."""
    return text.isascii() and text.isdigit()


def note_after(before: FedParts | None, next_offset: int | None, parts: Collection[FedPart]) -> str | None:
    """Return the note for the next commits, which include all input of these parts. `before` is the note of the newest
    commit, at `next_offset`. None if it would be too long: then nothing is known of these parts."""
    own = {part.digest for part in parts}
    text = ",".join(sorted(own))
    if len(text) > _MAX_CHARACTERS:
        return None
    left = dict(before.left) if before is not None else {}
    if before is not None and next_offset is not None:
        left |= dict.fromkeys(before.has_all, next_offset)
    # Those that left last come first: they are likelier to return. Those of one offset are sorted by digest, so that a
    # note of the same parts is the same text.
    for digest in sorted(sorted(left.keys() - own), key=left.__getitem__, reverse=True):
        entry = f"{digest}@{left[digest]}"
        if len(text) + 1 + len(entry) > _MAX_CHARACTERS:
            break
        text = f"{text},{entry}" if text else entry
    return text


@lru_cache(maxsize=4_096)
def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:_DIGEST_CHARACTERS].decode()
