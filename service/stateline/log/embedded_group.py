"""Consumer groups of the embedded log: members, and the owner of each partition.

There is no coordinator: members share tables, and each change is one write transaction. For each partition the table
`assignments` has a `target`, the member that shall own it, and an `owner`, the member that owns it.

1. A member that joins, leaves or finds another member's session over computes all targets and raises the generation.
2. A member that sees a new generation releases what it should no longer own. `on_revoked` runs first, then `owner`
   becomes NULL.
3. A member takes a partition once `owner` is NULL, so two members never own one. It takes all partitions of one number
   together, so that a task never starts with half of its inputs.

The group refuses commits of a member that it removed. Times are of the machine's monotonic clock. A heartbeat from the
future is from before a restart of the machine.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stateline.log.embedded_file import monotonic_ms
from stateline.log.interface import OffsetNote
from stateline_store import FencedError, TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """The member on whose behalf offsets are committed. `member` is None for a consumer that used `assign`."""

    group: str
    member: str | None = None
    incarnation: str = ""


class Assignment(NamedTuple):
    """One row of the table. `target` and `owner` are member names or None."""

    partition_id: int
    partition: TopicPartition
    target: str | None
    owner: str | None


def assign(
    subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int], previous: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Return partition → member, for these members' topics and these topics' partition counts. Topics of equal count
    and equal subscribers go together: one member gets partition n of all of them. The numbers of two members differ by
    at most one. Each member keeps its `previous` partitions where that allows."""
    families: dict[tuple[int, tuple[str, ...]], list[str]] = defaultdict(list)
    for topic in sorted(counts):
        members = tuple(sorted(member for member, topics in subscriptions.items() if topic in topics))
        if members:
            families[counts[topic], members].append(topic)
    result: dict[TopicPartition, str] = {}
    load: Counter[str] = Counter()
    for (count, members), topics in sorted(families.items()):
        before = {n: previous.get(TopicPartition(topics[0], n)) for n in range(count)}
        for number, member in _spread(members, before, load).items():
            load[member] += 1
            result |= {TopicPartition(topic, number): member for topic in topics}
    return result


def _spread(members: tuple[str, ...], before: Mapping[int, str | None], load: Mapping[str, int]) -> dict[int, str]:
    """Return number → member, balanced. `load` breaks ties, so that topics of one partition spread too."""
    kept: dict[str, list[int]] = {member: [] for member in members}
    for number in sorted(before):
        if (member := before[number]) in kept:
            kept[member].append(number)
    least, extra = divmod(len(before), len(members))
    # The members with the most kept partitions may have one more, then those with the least load.
    ranked = sorted(members, key=lambda member: (-len(kept[member]), load.get(member, 0), member))
    room = {member: least + (rank < extra) for rank, member in enumerate(ranked)}
    result = {number: member for member in members for number in kept[member][: room[member]]}
    free = [member for member in ranked for _ in range(room[member] - len(kept[member]))]
    return result | dict(zip((number for number in sorted(before) if number not in result), free, strict=True))


def join(sql: sqlite3.Connection, claim: Claim, topics: Collection[str], session_timeout_ms: int) -> None:
    """Add this member, in a write transaction. A static member that returns keeps its partitions. The partitions that
    its predecessor owned become free."""
    sql.execute("INSERT OR IGNORE INTO groups VALUES (?, 0)", (claim.group,))
    known = sql.execute(
        "SELECT topics FROM members WHERE group_name = ? AND member = ?", (claim.group, claim.member)
    ).fetchone()
    sql.execute("UPDATE assignments SET owner = NULL WHERE group_name = ? AND owner = ?", (claim.group, claim.member))
    encoded = json.dumps(sorted(topics))
    sql.execute(
        "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?)",
        (claim.group, claim.member, claim.incarnation, encoded, monotonic_ms(), session_timeout_ms),
    )
    if known != (encoded,):
        rebalance(sql, claim.group)


def leave(sql: sqlite3.Connection, claim: Claim) -> None:
    """Remove this member and free its partitions, in a write transaction. Does nothing if another took over."""
    gone = sql.execute(
        "DELETE FROM members WHERE group_name = ? AND member = ? AND incarnation = ?",
        (claim.group, claim.member, claim.incarnation),
    )
    if gone.rowcount:
        rebalance(sql, claim.group)


def heartbeat(sql: sqlite3.Connection, claim: Claim) -> None:
    """Record a heartbeat and remove silent members, in a write transaction."""
    sql.execute(
        "UPDATE members SET heartbeat_ms = ? WHERE group_name = ? AND member = ? AND incarnation = ?",
        (monotonic_ms(), claim.group, claim.member, claim.incarnation),
    )
    if _forget_silent(sql, claim.group) or _topics_changed(sql, claim.group):
        rebalance(sql, claim.group)


def live_members(sql: sqlite3.Connection, group: str) -> list[str]:
    """Return the live members, in a write transaction. The others are removed."""
    if _forget_silent(sql, group):
        rebalance(sql, group)
    return [member for (member,) in sql.execute("SELECT member FROM members WHERE group_name = ?", (group,)).fetchall()]


def remove(sql: sqlite3.Connection, group: str, members: Collection[str]) -> None:
    """Remove these members, in a write transaction. Their commits are refused from now on."""
    gone = [
        sql.execute("DELETE FROM members WHERE group_name = ? AND member = ?", (group, member)).rowcount
        for member in members
    ]
    if any(gone):
        rebalance(sql, group)


def _forget_silent(sql: sqlite3.Connection, group: str) -> bool:
    now = monotonic_ms()
    silent = sql.execute(
        "DELETE FROM members WHERE group_name = ? AND (heartbeat_ms < ? - session_timeout_ms OR heartbeat_ms > ?)",
        (group, now, now),
    )
    return silent.rowcount > 0


def _topics_changed(sql: sqlite3.Connection, group: str) -> bool:
    wanted = {partition_id for partition_id, _ in _subscribed_partitions(sql, _subscriptions(sql, group))}
    return wanted != {row.partition_id for row in assignments(sql, group) if row.target is not None}


def rebalance(sql: sqlite3.Connection, group: str) -> None:
    """Compute every target of the group and raise its generation, in a write transaction."""
    subscriptions = _subscriptions(sql, group)
    partitions = _subscribed_partitions(sql, subscriptions)
    rows = assignments(sql, group)
    owners = {row.partition: row.owner for row in rows if row.owner in subscriptions}
    previous = {row.partition: holder for row in rows if (holder := owners.get(row.partition) or row.target)}
    counts = Counter(partition.topic for _, partition in partitions)
    targets = assign(subscriptions, counts, previous)
    sql.execute("DELETE FROM assignments WHERE group_name = ?", (group,))
    known = {row.partition_id: row.partition for row in rows} | dict(partitions)
    sql.executemany(
        "INSERT INTO assignments VALUES (?, ?, ?, ?)",
        (
            (group, partition_id, targets.get(partition), owners.get(partition))
            for partition_id, partition in known.items()
            if partition in targets or partition in owners
        ),
    )
    sql.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (group,))


def _subscriptions(sql: sqlite3.Connection, group: str) -> dict[str, list[str]]:
    query = "SELECT member, topics FROM members WHERE group_name = ?"
    return {member: json.loads(topics) for member, topics in sql.execute(query, (group,))}


def _subscribed_partitions(
    sql: sqlite3.Connection, subscriptions: Mapping[str, Collection[str]]
) -> list[tuple[int, TopicPartition]]:
    topics = {topic for subscribed in subscriptions.values() for topic in subscribed}
    return [
        (partition_id, TopicPartition(topic, partition))
        for partition_id, topic, partition in sql.execute("SELECT id, topic, partition FROM partitions")
        if topic in topics
    ]


def assignments(sql: sqlite3.Connection, group: str) -> list[Assignment]:
    """Return every assigned or owned partition of the group."""
    query = (
        "SELECT partition_id, topic, partition, target, owner FROM assignments "
        "JOIN partitions ON id = partition_id WHERE group_name = ? ORDER BY topic, partition"
    )
    rows = sql.execute(query, (group,)).fetchall()
    return [Assignment(id_, TopicPartition(topic, number), *who) for id_, topic, number, *who in rows]


def acquirable(
    rows: Collection[Assignment], member: str, owned: Collection[TopicPartition], topics: Collection[str]
) -> list[Assignment]:
    """Return the rows that this member of these topics may take: meant for it, of numbers of which no other member owns
    a partition. The member takes no number that is partly meant for others, of topics of equal count. Then the group
    still has a member of other topics, such as the static member of a stopped worker."""
    meant = [row for row in rows if row.target == member and row.partition not in owned]
    owned_by_others = {row.partition.partition for row in meant if row.owner not in (None, member)}
    counts = Counter(row.partition.topic for row in rows)

    def whole(row: Assignment) -> tuple[int, int]:
        return counts[row.partition.topic], row.partition.partition

    in_parts = {whole(row) for row in rows if row.target != member and row.partition.topic in topics}
    return [row for row in meant if row.partition.partition not in owned_by_others and whole(row) not in in_parts]


def take(sql: sqlite3.Connection, claim: Claim, owned: Collection[TopicPartition]) -> list[Assignment]:
    """Take what this member may take, in a write transaction. Takes nothing if it is no longer a member."""
    if not _is_member(sql, claim) or claim.member is None:
        return []
    topics = _subscriptions(sql, claim.group)[claim.member]
    taken = acquirable(assignments(sql, claim.group), claim.member, owned, topics)
    sql.executemany(
        "UPDATE assignments SET owner = ? WHERE group_name = ? AND partition_id = ?",
        ((claim.member, claim.group, row.partition_id) for row in taken),
    )
    return taken


def release(sql: sqlite3.Connection, claim: Claim, partition_ids: Iterable[int]) -> None:
    """Free these partitions, in a write transaction. Does nothing if this is no longer a member."""
    if _is_member(sql, claim):
        sql.executemany(
            "UPDATE assignments SET owner = NULL WHERE group_name = ? AND partition_id = ? AND owner = ?",
            ((claim.group, partition_id, claim.member) for partition_id in partition_ids),
        )


def _is_member(sql: sqlite3.Connection, claim: Claim) -> bool:
    query = "SELECT 1 FROM members WHERE group_name = ? AND member = ? AND incarnation = ?"
    return bool(sql.execute(query, (claim.group, claim.member, claim.incarnation)).fetchall())


def commit_offsets(
    sql: sqlite3.Connection, claim: Claim, next_offsets: Mapping[int, int], notes: Mapping[int, OffsetNote]
) -> None:
    """Write these offsets (partition id → next offset) and the notes with them, in a write transaction. An offset
    without a note loses the one that it had.

    Raises `FencedError` when the claim does not own one of the partitions: roll the transaction back.
    """
    check_ownership(sql, claim, next_offsets)
    sql.executemany(
        "INSERT OR REPLACE INTO group_offsets VALUES (?, ?, ?, ?, ?)",
        ((claim.group, id_, next_offset, *notes.get(id_, OffsetNote())) for id_, next_offset in next_offsets.items()),
    )


def check_ownership(sql: sqlite3.Connection, claim: Claim, partition_ids: Iterable[int]) -> None:
    """Raise `FencedError` unless the claim's member owns every one of these partitions.

    A consumer that chose its partitions itself may commit while the group has no members, as with Kafka.
    """
    if claim.member is None:
        if sql.execute("SELECT 1 FROM members WHERE group_name = ?", (claim.group,)).fetchall():
            raise FencedError(f"Group {claim.group!r} has members: only they may commit its offsets.")
        return
    if not _is_member(sql, claim):
        raise FencedError(f"Member {claim.member!r} is no longer in group {claim.group!r}: poll to join again.")
    query = "SELECT partition_id FROM assignments WHERE group_name = ? AND owner = ?"
    owned = {partition_id for (partition_id,) in sql.execute(query, (claim.group, claim.member))}
    if missing := set(partition_ids) - owned:
        raise FencedError(
            f"Member {claim.member!r} of group {claim.group!r} does not own {len(missing)} of the partitions "
            "that it commits: nothing was committed."
        )
