"""A store's changelog records: what a commit writes of it, and what a restore reads back.

A changelog record's key is the store's key and its value the plain value; a timestamped store's timestamp
travels as the record's timestamp (Kafka Streams' format, `timestamp -1` becomes 0 as a record's cannot be
negative). The last record of a commit carries the store's Position in the headers of Kafka Streams'
`ChangelogRecordDeserializationHelper`: ``v`` = 0x00 and ``c`` = the encoded Position. The newest record of a
compacted topic is never compacted away, so neither is the newest Position.

Beside the Position, ``t`` has the store's types as its files say them (`StoreTypes.encode`): where those are lost, only
the changelog can tell what its bytes mean. Changelogs of other programs, such as Kafka Streams, have no ``t``.

At least once nothing keeps a worker from writing that was stopped in the middle of a commit while another took over:
only who reads can tell. So every record carries its owner's epoch in the header ``e`` (compaction may remove any other
record): the offset at which the changelog ended when its owner took it over. Who came later has the larger one, since
offsets never go back; no record is older than its owner's epoch, so that a count of owners could not be larger. A
record whose epoch is smaller than one before it was written by an owner that had been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

from stateline.log.interface import Headers, LogRow, Record
from stateline_store import (
    DamagedDataError,
    NewerFormatError,
    Position,
    StateStore,
    StoreTypes,
    TopicPartition,
)

_VERSION_HEADER = "v"  # in topics: never change
_POSITION_HEADER = "c"  # in topics: never change
_TYPES_HEADER = "t"  # in topics: never change
_EPOCH_HEADER = "e"  # in topics: never change
_EPOCH_BYTES = 8
_VERSION = b"\x00"

OWNER_EPOCH = TopicPartition("$owner-epoch", 0)
"""Under which a store's offsets have the largest epoch of its changelog up to its own offset. No topic can be called
so. On disk: never change."""


_InHeader = TypeVar("_InHeader", Position, StoreTypes)
_KEY = itemgetter(Record._fields.index("key"))
_CHANGE = itemgetter(*map(Record._fields.index, ("key", "value", "timestamp_ms")))


def staged_rows(store: StateStore, now_ms: int) -> list[LogRow]:
    """What the store has staged since its last commit, as it says itself.

    Those of a store without timestamps, and tombstones, carry `now_ms`.
    """
    return [
        (key, value, now_ms if timestamp is None else timestamp if timestamp > 0 else 0)
        for key, value, timestamp in store.staged_changes()
    ]


def position_headers(position: Position) -> Headers:
    """The headers of a commit's last record that say how far its store has come."""
    return (_VERSION_HEADER, _VERSION), (_POSITION_HEADER, position.encode())


def types_headers(types: StoreTypes) -> Headers:
    """The headers of a commit's last record that say what the changelog's bytes mean."""
    return ((_TYPES_HEADER, types.encode()),)


def owner_headers(epoch: int) -> Headers:
    """The headers of every record of an owner."""
    return ((_EPOCH_HEADER, epoch.to_bytes(_EPOCH_BYTES, "big")),)


def owner_epoch(records: Sequence[Record]) -> int:
    """The epoch of the last of these changelog records that has one; 0 when none does."""
    for record in reversed(records):
        for name, epoch in record.headers:
            if name == _EPOCH_HEADER and epoch is not None and len(epoch) == _EPOCH_BYTES:
                return int.from_bytes(epoch, "big")
    return 0


def without_former_owners(records: Sequence[Record], newest: int) -> tuple[Sequence[Record], int]:
    """These changelog records, which follow others whose largest epoch was `newest`, without those that an owner wrote
    after another had taken over; and the largest epoch now.

    Records without an epoch stay: of exactly_once_v2, where the log itself refuses a former owner's, of a store of a
    user's own kind, or of another program.
    """
    largest = newest.to_bytes(_EPOCH_BYTES, "big")  # compared as bytes: they are in the order of the numbers
    late: set[int] = set()
    for at, record in enumerate(records):
        for name, epoch in record.headers:
            if name == _EPOCH_HEADER and epoch != largest and epoch is not None and len(epoch) == _EPOCH_BYTES:
                if epoch > largest:
                    largest = epoch
                else:
                    late.add(at)
    kept = [record for at, record in enumerate(records) if at not in late] if late else records
    return kept, int.from_bytes(largest, "big")


def stage(store: StateStore, records: Sequence[Record]) -> None:
    """Stage changelog (or table) records as they stand: the newest of a key wins, no value deletes.

    Records without a key are left out: compaction forbids them in a changelog, a table's were refused before.
    """
    if None in map(_KEY, records):
        records = [record for record in records if record.key is not None]
    store.restore(map(_CHANGE, records))


def position_of_changelog(records: Sequence[Record]) -> Position:
    """The newest Position that these changelog records carry; an empty one when none does."""
    found = _newest(records, _POSITION_HEADER)
    return Position() if found is None else _decoded(*found, Position.decode)


def types_of_changelog(records: Sequence[Record]) -> StoreTypes | None:
    """The newest types that these changelog records carry; None when none does."""
    found = _newest(records, _TYPES_HEADER)
    return None if found is None else _decoded(*found, StoreTypes.decode)


def end_of_last_commit(records: Sequence[Record]) -> int:
    """How many of these changelog records belong to commits whose last record is among them."""
    for index in range(len(records) - 1, -1, -1):
        headers = records[index].headers  # of nearly every record none: not worth a generator
        if headers and any(name == _POSITION_HEADER for name, _ in headers):
            return index + 1
    return 0


def _newest(records: Sequence[Record], header: str) -> tuple[Record, bytes] | None:
    for record in reversed(records):
        for name, value in record.headers or ():
            if name == header and value is not None:
                return record, value
    return None


def _decoded(record: Record, value: bytes, decode: Callable[[bytes, str], _InHeader]) -> _InHeader:
    where = f"The record of {record.topic}-{record.partition} at offset {record.offset}"
    for name, version in record.headers:
        if name == _VERSION_HEADER and version and version > _VERSION:
            raise NewerFormatError.of(where, f"headers of version {version[0]}", f"version {_VERSION[0]}")
    try:
        return decode(value, where)
    except DamagedDataError as error:
        raise DamagedDataError(
            f"A header of {record.topic}-{record.partition} offset {record.offset} cannot be read: "
            f"{error} Another program may have written to this changelog."
        ) from error


def position_of_input(records: Sequence[Record]) -> Position:
    """The Position after these input records."""
    last: dict[TopicPartition, int] = {}
    for record in records:
        last[TopicPartition(record.topic, record.partition)] = record.offset
    return Position.of(last)
