"""A store's changelog records: a commit writes them, and a restore reads them back.

A record's key is the store's key, its value the plain value. A timestamped store's timestamp is the record's timestamp,
as in Kafka Streams (-1 becomes 0, because a record's cannot be negative). The last record of a commit has the store's
Position in the headers of Kafka Streams' `ChangelogRecordDeserializationHelper`: ``v`` = 0x00 and ``c`` = the encoded
Position. Compaction keeps a topic's newest record, and so the newest Position.

Header ``t`` has the store's types (`StoreTypes.encode`): if the store's files are lost, only the changelog can tell
what its bytes mean. Changelogs of other programs, such as Kafka Streams, have no ``t``.

At least once, a worker that was stopped in the middle of a commit may still write after another took over. Only readers
can tell. So every record has its owner's epoch in header ``e`` (compaction may remove any other record): the offset at
which the changelog ended when its owner took it over. Later owners have larger epochs, since offsets never go back. A
record whose epoch is smaller than one before it was written by a former owner.

Records of a store with headers (KIP-1271) have the headers of the value first: their own. A tombstone has the timestamp
and headers of the record that deleted the key. Those above follow them, in the order ``v``, ``c``, ``t``, ``e``. Own
headers may have the same names. If the last own header has one, and no ``c`` follows, a ``v`` = 0x00 comes between, so
that a restore knows where the own headers end.

A change that `suppress` holds back has one own header, ``v`` = 0x03, behind all others: Kafka Streams reads the last
``v`` there.

Kafka Streams writes own headers without such an end. So a restore takes only what Stateline itself would write: ``t``
and ``c`` behind a ``v``, an ``e`` that begins with 0xff, and a lone ``v`` = 0x00 behind one of the four names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeGuard, TypeVar

from stateline.log.interface import Headers, Record
from stateline.model.topic import Topic
from stateline_store import (
    DamagedDataError,
    NewerFormatError,
    Position,
    StateStore,
    StoreTypes,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.rows.headers import join_headers
from stateline_store.rows.timestamped_rows import join

_VERSION_HEADER = "v"  # in topics: never change
_POSITION_HEADER = "c"  # in topics: never change
_TYPES_HEADER = "t"  # in topics: never change
_EPOCH_HEADER = "e"  # in topics: never change
_EPOCH_TAG = b"\xff"  # in topics: never change; before an epoch, so that other programs' headers are not one
_EPOCH_SIZE = 9
_VERSION = b"\x00"
_ADDED = (_VERSION_HEADER, _POSITION_HEADER, _TYPES_HEADER, _EPOCH_HEADER)
_END_OF_OWN = (_VERSION_HEADER, _VERSION)
BUFFER_VERSION = ((_VERSION_HEADER, b"\x03"),)
"""The own header of a change that `suppress` holds back (`buffered_changes`). In topics: never change."""

OWNER_EPOCH = TopicPartition("$owner-epoch", 0)
"""Under which a store's offsets have the largest epoch of its changelog up to its own offset. No topic can be called
so. On disk: never change."""


_InHeader = TypeVar("_InHeader", Position, StoreTypes)
_KEY = itemgetter(Record._fields.index("key"))
_CHANGE = itemgetter(*map(Record._fields.index, ("key", "value", "timestamp_ms")))


def origin(timestamp_ms: int, headers: Headers) -> bytes:
    """Return the bytes for `TransactionalStore.keep_origins`."""
    return join(join_headers(b"", headers), timestamp_ms)


def own_headers(headers: Headers) -> Headers:
    """Return a changelog record's own headers, without those that a commit adds."""
    if len(headers) > 1 and _is_of_buffer(headers) and not own_headers(headers[:-1]):
        return BUFFER_VERSION
    at = len(headers) - bool(headers and _is_epoch(headers[-1]))
    end = at - 1 if at and headers[at - 1][0] == _TYPES_HEADER else at
    if end > 1 and headers[end - 1][0] == _POSITION_HEADER and _is_version(headers[end - 2]):
        return headers[: end - 2]
    if at > 1 and headers[at - 1] == _END_OF_OWN and headers[at - 2][0] in _ADDED:
        return headers[: at - 1]
    return headers[:at]


def _is_of_buffer(headers: Headers) -> bool:
    return bool(headers) and headers[-1] == BUFFER_VERSION[0]  # Kafka's client gives a list, the embedded log a tuple


def _is_epoch(header: tuple[str, bytes | None]) -> bool:
    name, epoch = header
    return name == _EPOCH_HEADER and epoch is not None and len(epoch) == _EPOCH_SIZE and epoch.startswith(_EPOCH_TAG)


def _is_version(header: tuple[str, bytes | None]) -> bool:
    return header[0] == _VERSION_HEADER and len(header[1] or b"") == 1


def headers_of_table(topic: Topic) -> Callable[[Headers], Headers]:
    """Return what gives a record's own headers in the topic of a table. In the changelog of a Kafka Streams application
    they may end with the Position."""
    return as_they_are if topic.external is None else _without_position


def as_they_are(headers: Headers) -> Headers:
    return headers


def _without_position(headers: Headers) -> Headers:
    is_there = len(headers) > 1 and headers[-2] == _END_OF_OWN and headers[-1][0] == _POSITION_HEADER
    return headers[:-2] if is_there and headers[-1][1] else headers


def with_own(own: Headers, added: Headers) -> Headers:
    """Return own headers and those that a commit adds, so that `own_headers` finds them again."""
    if own == BUFFER_VERSION:
        return (*added, *own)
    if own and own[-1][0] in _ADDED and not (added and added[0][0] == _VERSION_HEADER):
        return (*own, _END_OF_OWN, *added)
    return (*own, *added)


def position_headers(position: Position) -> Headers:
    return (_VERSION_HEADER, _VERSION), (_POSITION_HEADER, position.encode())


def types_headers(types: StoreTypes) -> Headers:
    return ((_TYPES_HEADER, types.encode()),)


def owner_headers(epoch: int) -> Headers:
    return ((_EPOCH_HEADER, _epoch_bytes(epoch)),)


def _epoch_bytes(epoch: int) -> bytes:
    return _EPOCH_TAG + epoch.to_bytes(_EPOCH_SIZE - 1, "big")


def _epoch_number(data: bytes) -> int:
    return int.from_bytes(data[1:], "big")


def owner_epoch(records: Sequence[Record]) -> int:
    """Return the epoch of the last of these changelog records that has one; 0 if none does."""
    for record in reversed(records):
        if (epoch := _epoch(record)) is not None:
            return _epoch_number(epoch)
    return 0


def _epoch(record: Record) -> bytes | None:
    """Return the epoch, which is the last header that a commit adds."""
    headers = _added(record.headers) if _is_of_buffer(record.headers) else record.headers
    return headers[-1][1] if headers and _is_epoch(headers[-1]) else None


def without_former_owners(records: Sequence[Record], newest: int) -> tuple[Sequence[Record], int]:
    """Return these changelog records without those of former owners, and the largest epoch now. It was `newest` before.
    Records without an epoch stay: exactly_once_v2's, where the log itself refuses a former owner's, and those of an
    application's own store or another program."""
    largest = _epoch_bytes(newest)  # compared as bytes: they are in the order of the numbers
    late: set[int] = set()
    for at, record in enumerate(records):
        epoch = _epoch(record)
        if epoch is None or epoch == largest:
            continue
        if epoch > largest:
            largest = epoch
        else:
            late.add(at)
    kept = [record for at, record in enumerate(records) if at not in late] if late else records
    return kept, _epoch_number(largest)


def stage(store: StateStore, records: Sequence[Record], *, own: Callable[[Headers], Headers] = as_they_are) -> None:
    """Stage changelog or table records: the newest of a key wins, no value deletes. Records without a key are left out:
    compaction forbids them in a changelog, and a table's were refused before. A store with headers gets those of the
    records that are their `own`."""
    if None in map(_KEY, records):
        records = [record for record in records if record.key is not None]
    if keeps_headers(store):
        records = [_with_headers(record, own) for record in records]
    store.restore(map(_CHANGE, records))


def keeps_headers(store: StateStore) -> TypeGuard[TransactionalStore]:
    return isinstance(store, TransactionalStore) and store.headers


def _with_headers(record: Record, own: Callable[[Headers], Headers]) -> Record:
    """Return the record with its own headers before its value."""
    if record.value is None:
        return record
    return record._replace(value=join_headers(record.value, own(record.headers)))


def position_of_changelog(records: Sequence[Record]) -> Position:
    """Return the newest Position of these changelog records; an empty one if none has one."""
    found = _newest(records, _POSITION_HEADER)
    return Position() if found is None else _decoded(*found, Position.decode)


def types_of_changelog(records: Sequence[Record]) -> StoreTypes | None:
    """Return the newest types of these changelog records; None if none has any."""
    found = _newest(records, _TYPES_HEADER)
    return None if found is None else _decoded(*found, StoreTypes.decode)


def end_of_last_commit(records: Sequence[Record]) -> int:
    """Count the changelog records up to and with the last one that ends a commit."""
    for index in range(len(records) - 1, -1, -1):
        headers = records[index].headers  # of nearly every record none: not worth a generator
        if headers and any(name == _POSITION_HEADER for name, _ in _added(headers)):
            return index + 1
    return 0


def _newest(records: Sequence[Record], header: str) -> tuple[Record, bytes] | None:
    for record in reversed(records):
        for name, value in _added(record.headers):
            if name == header and value is not None:
                return record, value
    return None


def _added(headers: Headers) -> Headers:
    """Return the headers that a commit has added."""
    own = len(own_headers(headers)) if headers else 0
    return headers[:-own] if own and own_headers(headers) is BUFFER_VERSION else headers[own:]


def _decoded(record: Record, value: bytes, decode: Callable[[bytes, str], _InHeader]) -> _InHeader:
    where = f"The record of {record.topic}-{record.partition} at offset {record.offset}"
    for name, version in _added(record.headers):
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
    last: dict[TopicPartition, int] = {}
    for record in records:
        last[TopicPartition(record.topic, record.partition)] = record.offset
    return Position.of(last)
