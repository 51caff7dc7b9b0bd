"""The embedded log: topics in one SQLite file that many processes share, without a broker.

It serves quickstarts, tests and small deployments on one machine. Semantics are those of `stateline.log.interface`.
Records are never deleted by age. `embedded_group` describes groups, `embedded_file` the file's layout.
"""

from __future__ import annotations

import base64
import re
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Self

from stateline.log.embedded_consumer import EmbeddedConsumer
from stateline.log.embedded_file import OFFSET_BITS, OFFSET_MASK, LogFile
from stateline.log.embedded_group import Claim, assignments, commit_offsets, live_members, remove
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.log.embedded_transactions import MAX_TRANSACTION_TIMEOUT_MS, visible_ends
from stateline.log.interface import (
    EMBEDDED_CLUSTER,
    NO_NOTES,
    GroupMember,
    IsolationLevel,
    NewTopic,
    Notes,
    OffsetNote,
    TopicInfo,
)
from stateline.log.topic_settings import DEFAULTS, TOPIC_SETTINGS
from stateline.log.waiting import Patience
from stateline_store import TopicPartition
from stateline_store.errors import DoesNotExistError, InvalidArgumentError, LogUnavailableError, RetryLaterError

_DELETE_AT_ONCE = 10_000  # rows: about 10 ms, for which other writers wait
_LEGAL_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")  # Kafka's rule


class EmbeddedLog:
    """A `Log` in the file `path`. It makes the file and its folder if they do not exist.

    Each admin, consumer and producer has its own connection. Processes may share the file, but not over a network file
    system. A write waits up to `busy_timeout_ms` for other writers. With `sync`, a write is on the disk when the call
    returns. With `read_only`, the file must exist, and only the admin and consumers without a group work.

    Raises `LogUnavailableError` if the file cannot be opened, `ConfigurationError` if this user may not write it, and
    `DamagedDataError` if it is not an embedded log.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        session_timeout_ms: int = 10_000,
        transaction_timeout_ms: int = 60_000,
        busy_timeout_ms: int = 10_000,
        sync: bool = False,
        read_only: bool = False,
    ) -> None:
        if not 0 < transaction_timeout_ms <= MAX_TRANSACTION_TIMEOUT_MS:
            raise InvalidArgumentError(
                f"transaction_timeout_ms is 1 to {MAX_TRANSACTION_TIMEOUT_MS}, not {transaction_timeout_ms}."
            )
        self.embedded_file = Path(path)
        self.patience = Patience()  # nothing here waits for more than `busy_timeout_ms`
        self._session_timeout_ms = session_timeout_ms
        self._transaction_timeout_ms = transaction_timeout_ms
        self._busy_timeout_ms = busy_timeout_ms
        self._sync = sync
        self._read_only = read_only
        try:
            if not read_only:
                self.embedded_file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogUnavailableError(
                f"The folder of the embedded log {self.embedded_file} cannot be made: {error}."
            ) from error
        self._open().close()

    def _open(self) -> LogFile:
        return LogFile(self.embedded_file, self._busy_timeout_ms, sync=self._sync, read_only=self._read_only)

    def admin(self) -> EmbeddedAdmin:
        return EmbeddedAdmin(self._open())

    def consumer(
        self,
        group: str | None = None,
        *,
        instance_id: str | None = None,
        client_id: str | None = None,
        auto_offset_reset: str = "earliest",
        isolation_level: IsolationLevel = "read_committed",
    ) -> EmbeddedConsumer:
        del client_id  # there is no broker to show it
        return EmbeddedConsumer(
            self._open(), group, instance_id, auto_offset_reset, self._session_timeout_ms, isolation_level
        )

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None
    ) -> EmbeddedProducer:
        timeout_ms = min(transaction_timeout_ms or self._transaction_timeout_ms, MAX_TRANSACTION_TIMEOUT_MS)
        return EmbeddedProducer(self._open(), transactional_id, timeout_ms)

    def close(self) -> None:
        """Do nothing: each object made by this log closes its own connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class EmbeddedAdmin:
    """Implements `stateline.log.interface.Admin`. One thread at a time uses it."""

    def __init__(self, file: LogFile) -> None:
        self._file = file

    def cluster_id(self) -> str:
        return EMBEDDED_CLUSTER

    def topics(self, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
        rows = self._file.rows("SELECT name, partitions, topic_id FROM topics ORDER BY name")
        wanted = ((name, *rest) for name, *rest in rows if named is None or name in named)
        return {name: TopicInfo(name, partitions, topic_id) for name, partitions, topic_id in wanted}

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        wanted = list(topics)
        for topic in wanted:
            _check(topic)
        if validate_only:
            return
        with self._file.write() as sql:
            for topic in wanted:
                _create(sql, topic)

    def delete_topics(self, names: Iterable[str]) -> None:
        with self._file.write() as sql:
            for name in names:
                _delete(sql, name)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        for partition, offset in before.items():
            if not 0 <= offset <= (end := self.log_end(partition)):
                raise InvalidArgumentError(f"{offset} is not an offset of {partition}, which ends at {end}.")
            partition_id = self._partition_id(partition)
            first = partition_id << OFFSET_BITS
            with self._file.write() as sql:
                raised = "UPDATE partitions SET first_offset = max(first_offset, ?) WHERE id = ?"
                sql.execute(raised, (offset, partition_id))
                has_more = _delete_some(sql, first, first + offset)
            while has_more:  # others may write in between
                with self._file.write() as sql:
                    has_more = _delete_some(sql, first, first + offset)

    def topic_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        existing = self.topics()
        query = "SELECT name, value FROM topic_settings WHERE topic = ?"
        return {name: {**DEFAULTS, **dict(self._file.rows(query, (name,)))} for name in names if name in existing}

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: at for partition, (at, _) in self.committed_with_notes(group, partitions).items()}

    def committed_by(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        del group, partitions  # there is one machine only
        return {}

    def committed_with_notes(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetNote]]:
        rows = self._file.rows(
            "SELECT topic, partition, next_offset, time_ms, fed FROM group_offsets "
            "JOIN partitions ON id = partition_id WHERE group_name = ?",
            (group,),
        )
        found = {TopicPartition(topic, number): (at, OffsetNote(*note)) for topic, number, at, *note in rows}
        return {partition: found[partition] for partition in partitions if partition in found}

    def alter_offsets(self, group: str, next_offsets: Mapping[TopicPartition, int], notes: Notes = NO_NOTES) -> None:
        by_id = {self._partition_id(partition): offset for partition, offset in next_offsets.items()}
        noted = {self._partition_id(partition): note for partition, note in notes.items()}
        with self._file.write() as sql:
            if members := live_members(sql, group):
                raise RetryLaterError(f"Group {group!r} has members: {', '.join(sorted(members))}. Stop them first.")
            commit_offsets(sql, Claim(group), by_id, noted)

    def members(self, group: str) -> list[GroupMember]:
        with self._file.write() as sql:
            members, rows = live_members(sql, group), assignments(sql, group)
        return [
            GroupMember(member, "", None, frozenset(row.partition for row in rows if row.owner == member))
            for member in members
        ]

    def remove_members(self, group: str, names: Collection[str]) -> None:
        with self._file.write() as sql:
            remove(sql, group, names)

    def committed_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self._ends(each)[0] for each in partitions}

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        return self._partition(partition)[1], self._ends(partition)[0]

    def log_end(self, partition: TopicPartition) -> int:
        return self._ends(partition)[1]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {each: (self._partition(each)[1], self.log_end(each)) for each in partitions}

    def _ends(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the end for read_committed readers, and the end of the log."""
        partition_id = self._partition_id(partition)
        return visible_ends(self._file, [partition_id])[partition_id]

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset at or after a time. Reads the partition from its start: about 1 s per million
        records."""
        base = self._partition_id(partition) << OFFSET_BITS
        end, _ = self._ends(partition)
        rows = self._file.rows(
            "SELECT id FROM records WHERE id >= ? AND id < ? AND timestamp_ms >= ? ORDER BY id LIMIT 1",
            (base, base + end, timestamp_ms),
        )
        return rows[0][0] & OFFSET_MASK if rows else end

    def _partition_id(self, partition: TopicPartition) -> int:
        return self._partition(partition)[0]

    def _partition(self, partition: TopicPartition) -> tuple[int, int]:
        found = self._file.rows("SELECT id, first_offset FROM partitions WHERE topic = ? AND partition = ?", partition)
        if not found:
            raise DoesNotExistError(f"{self._file.path} has no partition {partition}.")
        return int(found[0][0]), int(found[0][1])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _check(topic: NewTopic) -> None:
    if not _LEGAL_NAME.fullmatch(topic.name):
        raise InvalidArgumentError(
            f"{topic.name!r} is not a topic name: 1 to 249 letters, digits, '.', '_' and '-' are, but not '.' or '..'."
        )
    if topic.partitions < 1:
        raise InvalidArgumentError(f"Topic {topic.name!r} needs at least 1 partition, not {topic.partitions}.")
    for name in topic.settings:
        if name not in TOPIC_SETTINGS:
            raise InvalidArgumentError(f"Topic {topic.name!r}: {name!r} is not one of Kafka's topic settings.")


def _create(sql: sqlite3.Connection, topic: NewTopic) -> None:
    topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")  # as Kafka writes a Uuid
    made = sql.execute("INSERT OR IGNORE INTO topics VALUES (?, ?, ?)", (topic.name, topic.partitions, topic_id))
    if not made.rowcount:
        return
    sql.executemany(
        "INSERT INTO partitions (topic, partition) VALUES (?, ?)",
        ((topic.name, partition) for partition in range(topic.partitions)),
    )
    sql.executemany(
        "INSERT INTO topic_settings VALUES (?, ?, ?)",
        ((topic.name, name, value) for name, value in topic.settings.items()),
    )


def _delete_some(sql: sqlite3.Connection, first: int, end: int) -> bool:
    """Delete up to `_DELETE_AT_ONCE` of these record ids. Return whether there may be more."""
    some = "SELECT id FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
    found = sql.execute(f"DELETE FROM records WHERE id IN ({some})", (first, end, _DELETE_AT_ONCE))
    return found.rowcount == _DELETE_AT_ONCE


def _delete(sql: sqlite3.Connection, name: str) -> None:
    ids = [id_ for (id_,) in sql.execute("SELECT id FROM partitions WHERE topic = ?", (name,)).fetchall()]
    for id_ in ids:
        base = id_ << OFFSET_BITS
        sql.execute("DELETE FROM records WHERE id BETWEEN ? AND ?", (base, base + OFFSET_MASK))
        sql.execute(
            "UPDATE groups SET generation = generation + 1 "
            "WHERE name IN (SELECT group_name FROM assignments WHERE partition_id = ?)",
            (id_,),
        )
        for table in ("assignments", "group_offsets", "open_ranges"):
            sql.execute(f"DELETE FROM {table} WHERE partition_id = ?", (id_,))
    sql.execute("DELETE FROM partitions WHERE topic = ?", (name,))
    sql.execute("DELETE FROM topic_settings WHERE topic = ?", (name,))
    sql.execute("DELETE FROM topics WHERE name = ?", (name,))
