"""Find input that the group processed while a store was not part of the application. Pure.

The worker's `missed_input` reads this input again or refuses the store. `stateline check` reports it before a start.
The note of the group's offset has the parts that have seen the input (`stateline.model.fed_parts`). A store's Position
has the input of the store:

| the note of the group's offset           | the store's own Position | the store has seen                         |
|------------------------------------------|--------------------------|--------------------------------------------|
| is missing: Kafka Streams, set by hand   | any                      | everything: no more can be known           |
| has the store                            | any                      | everything, once its changelog is restored |
| has the offset at which the store left   | any                      | up to the larger of the two                |
| does not know the store                  | has an offset            | up to this offset                          |
| does not know the store                  | has none                 | nothing: it is new and begins here         |

For a store with files and without a changelog, only its Position counts, because nothing restores it. Without a
Position it has seen nothing. Stores in memory without a changelog begin empty, as declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateline.model.fed_parts import FedPart, FedParts, filled_through
from stateline.model.reset_command import reset_command
from stateline.model.topology import Subtopology, Topology
from stateline_store import TopicPartition


@dataclass(frozen=True, slots=True)
class AwayParts:
    """Parts that may lack input of a source.

    `left` has the offset at which each part left, or None if the note has none. The group continues at `next_offset`
    with `note`. The log begins at `first`. `others` have all input. `unlogged` parts were not away, but have no
    changelog to restore from."""

    source: TopicPartition
    first: int
    next_offset: int
    left: Mapping[FedPart, int | None]
    others: tuple[FedPart, ...]
    unlogged: frozenset[FedPart]
    note: FedParts


@dataclass(frozen=True, slots=True)
class MissedInput:
    """Input of one partition that parts lack, or would get twice.

    `seen` has each part's next unseen offset. `reads_from` is the offset at which all parts of the topic can continue
    together. It is None if they cannot, and `why` has the reason. `unlogged` is that of `AwayParts`."""

    source: TopicPartition
    next_offset: int
    seen: Mapping[FedPart, int]
    reads_from: int | None
    why: str
    unlogged: frozenset[FedPart]

    def told(self) -> Iterator[str]:
        """Yield a message for each part whose store is served."""
        if self.reads_from is None:
            nothing = "The store has no changelog, so nothing brings this input."
            yield from (f"{self.of(part)}. {nothing}" for part in self.seen if part in self.unlogged)
        else:
            yield from (f"{self.of(part)}. The topic is read from offset {self.reads_from}." for part in self.seen)

    def of(self, part: FedPart) -> str:
        """Return the message about the input that this part has and lacks."""
        at, group = self.seen[part], self.next_offset
        what = f"Repartition topic {part.name!r} has" if part.kind == "topic" else f"Store {part.name!r} has"
        known = f"the input of {self.source} up to offset {at - 1}" if at > 0 else f"no input of {self.source}"
        if at > group:
            return f"{what} {known}, but the group goes back to {group} and would count input twice"
        missing = f"offset {at} is missing" if at == group - 1 else f"offsets {at} to {group - 1} are missing"
        if part in self.unlogged:  # its disk was lost, or another machine has processed the rest
            return f"{what} {known}, but the group has processed it up to offset {group - 1}: {missing}"
        return f"{what} {known}, but the group was at {group} without it: {missing}"


def away_parts(
    subtopology: Subtopology,
    parts: Sequence[FedPart],
    source: TopicPartition,
    bounds: tuple[int, int],
    next_offset: int,
    note: FedParts | None,
) -> AwayParts | None:
    """Return the parts of this source that may lack input; None without any. `bounds` are the log's first and end
    offsets."""
    first, end = bounds
    if note is None or next_offset > end:  # a group beyond the log's end starts over
        return None
    # A store of the application's own has no Position, so only the note counts.
    without = {s.name: s.persistent for s in subtopology.stores if not s.logged and s.kind != "custom"}
    # Stores in memory without a changelog begin empty anyway.
    kept = [p for p in parts if p.kind == "topic" or (p.kind == "store" and without.get(p.name, True))]
    away = {p.digest: at for p in kept if (at := note.left.get(p.digest)) is not None and at <= end}
    unlogged = frozenset(p for p in kept if p.kind == "store" and p.name in without and p.digest in note.has_all)
    left = {p: away.get(p.digest) for p in kept if p.digest not in note.has_all or p in unlogged}
    others = tuple(part for part in kept if part not in left)
    return AwayParts(source, first, next_offset, left, others, unlogged, note) if left else None


def missed_input(
    away: AwayParts,
    subtopology: Subtopology,
    topology: Topology,
    seen: Callable[[str], int | None],
    *,
    dead_letters: bool,
) -> tuple[MissedInput | None, list[str]]:
    """Return the input that these parts lack (None if no store lacks any), and the stores that are new to the source.

    `seen` returns the source's last offset in a store's Position, or None. `dead_letters`: failed records are written
    to a topic."""
    lacking: dict[FedPart, int] = {}
    has_all, new = list(away.others), list[str]()
    for part, left in away.left.items():
        own = seen(part.name) if part.kind == "store" else None
        if left is None and own is None and part not in away.unlogged:
            new += [part.name] if part.kind == "store" else []
            continue
        if own is None and part in away.unlogged and away.next_offset <= away.first:  # nothing was read yet
            continue
        at = max(left or 0, 0 if own is None else own + 1)
        if at < away.next_offset or (left is not None and left > away.next_offset):
            lacking[part] = at
        else:
            has_all.append(part)
    if not any(_stores_of(part, topology) for part in lacking):
        return None, new
    at = min(lacking.values())
    if has_all or len({*lacking.values()}) > 1:
        why = f"what else is made of {away.source.topic} has other offsets"
    elif any(_was_fed_otherwise(part, at, away.note, topology) for part in lacking):
        why = "these records have reached the store in another way since"
    else:
        why = _other_effects(away, subtopology, at, dead_letters=dead_letters)
    reads_from = None if why else at
    return MissedInput(away.source, away.next_offset, lacking, reads_from, why, away.unlogged & lacking.keys()), new


def _other_effects(away: AwayParts, subtopology: Subtopology, at: int, *, dead_letters: bool) -> str:
    """Return why the source cannot be read again from this offset on; empty if it can."""
    if dead_letters:
        return f"reading {away.source.topic} again would write dead letters a second time"
    if not is_read_alone(subtopology, away.source.topic):
        what = "write to other topics, call other functions, or lack changes of a table"
        return f"reading {away.source.topic} again would {what}"
    return f"{away.source} begins at offset {away.first}" if at < away.first else ""


def refusals(missed: Iterable[MissedInput], topology: Topology) -> dict[str, str]:
    """Return the reasons by store for stores that are not served. They, or a repartition topic that fills them, lack
    input that cannot be read again."""
    reasons: dict[str, str] = {}
    for each in missed:
        for part in each.seen if each.reads_from is None else ():
            if part in each.unlogged:
                continue
            stores = _stores_of(part, topology)
            if not stores:
                continue
            why = (
                f"{each.of(part)}. Reading does not mend that: {each.why}. To rebuild "
                f"{', '.join(stores)}, stop the application everywhere: {reset_command(topology, stores[:1])}"
            )
            for store in stores:
                reasons.setdefault(store, why)
    return reasons


def _stores_of(part: FedPart, topology: Topology) -> list[str]:
    """Return the stores that this part fills. A store fills itself."""
    return filled_through(topology, part.name) if part.kind == "topic" else [part.name]


def _was_fed_otherwise(part: FedPart, at: int, note: FedParts, topology: Topology) -> bool:
    """Whether a store that this part fills got input from `at` on in another way: directly instead of through a
    repartition topic, or through another one. Read again, it would count that input twice."""
    ways = [FedPart(store, "through") for store in _stores_of(part, topology)]
    ways += [FedPart(way.name) for way in ways if part.kind == "topic"]
    return any(way.digest in note.has_all or note.left.get(way.digest, 0) > at for way in ways)


def new_feed(store: str, source: TopicPartition, at: int, topology: Topology) -> str:
    """Return the warning for a store with rows that gets a source's input for the first time, from this offset on."""
    return (
        f"Store {store!r} gets input of {source.topic} for the first time, and {source} was read before: it gets what "
        f"comes from offset {at} on. To rebuild it with all input, stop the application everywhere: "
        f"{reset_command(topology, [store])}"
    )


def is_read_alone(subtopology: Subtopology, topic: str) -> bool:
    """Whether reading records of this topic changes only its stores and repartition topics.

    So it writes no topic of the user's, calls no function without a store, passes on no changes of a table, and needs
    no other topic in step."""
    readers, tables = subtopology.readers(topic), {table.name for table in subtopology.tables(topic)}
    if subtopology.needs_order() or any(reader.chooses_topic for reader in readers):
        return False
    if any(not to.internal for reader in readers for to in reader.forwards):
        return False
    if any(not reader.stores and not reader.forwards for reader in readers):
        return False
    return not tables or not any(
        reader.roots or any(store.name in tables for store in reader.stores) for reader in readers
    )
