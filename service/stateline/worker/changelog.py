"""Between a store and its changelog records: what a commit writes there, and what a restore reads back.

A changelog record's key is the store's key and its value the plain value; a timestamped store's timestamp
travels as the record's timestamp (Kafka Streams' format, `timestamp -1` becomes 0 as a record's cannot be
negative). The last record of a commit carries the store's Position in the headers of Kafka Streams'
`ChangelogRecordDeserializationHelper`: ``v`` = 0x00 and ``c`` = the encoded Position. The newest record of a
compacted topic is never compacted away, so neither is the newest Position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stateline.log.interface import Headers, LogRow, Record
from stateline_store import (
    DamagedDataError,
    Position,
    StateStore,
    TopicPartition,
)

_VERSION_HEADER = "v"  # in topics: never change
_POSITION_HEADER = "c"  # in topics: never change
_VERSION = b"\x00"


def staged_rows(store: StateStore, now_ms: int) -> list[LogRow]:
    """What the store has staged since its last commit, as it says itself.

    Those of a store without timestamps, and tombstones, carry `now_ms`.
    """
    return [
        (key, value, now_ms if timestamp is None else timestamp if timestamp > 0 else 0)
        for key, value, timestamp in store.staged_changes()
    ]


def position_headers(position: Position) -> Headers:
    """The headers of a commit's last record."""
    return (_VERSION_HEADER, _VERSION), (_POSITION_HEADER, position.encode())


def stage(store: StateStore, records: Iterable[Record]) -> None:
    """Stage changelog (or table) records as they stand: the newest of a key wins, no value deletes.

    Records without a key are left out: compaction forbids them in a changelog, a table's were refused before.
    """
    store.restore((r.key, r.value, r.timestamp_ms) for r in records if r.key is not None)


def position_of_changelog(records: Sequence[Record]) -> Position:
    """The newest Position that these changelog records carry; an empty one when none does."""
    for record in reversed(records):
        for name, value in record.headers or ():
            if name == _POSITION_HEADER and value is not None:
                return _decoded(record, value)
    return Position()


def end_of_last_commit(records: Sequence[Record]) -> int:
    """How many of these changelog records belong to commits whose last record is among them."""
    for index in range(len(records) - 1, -1, -1):
        if any(name == _POSITION_HEADER for name, _ in records[index].headers or ()):
            return index + 1
    return 0


def _decoded(record: Record, value: bytes) -> Position:
    try:
        return Position.decode(value)
    except DamagedDataError as error:
        raise DamagedDataError(
            f"The Position header of {record.topic}-{record.partition} offset {record.offset} cannot be read: "
            f"{error} Another program may have written to this changelog."
        ) from error


def position_of_input(records: Sequence[Record]) -> Position:
    """The Position after these input records."""
    last: dict[TopicPartition, int] = {}
    for record in records:
        last[TopicPartition(record.topic, record.partition)] = record.offset
    return Position.of(last)
