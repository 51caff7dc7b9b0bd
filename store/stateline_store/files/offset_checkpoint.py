"""Offset checkpoint files, `.checkpoint` and `<store>.position`: offsets by topic and partition, as in Kafka Streams.

    file := "0\\n" count "\\n" line*          UTF-8 text; 0 is the version, count the number of lines
    line := topic " " partition " " offset "\\n"

A task's ``.checkpoint`` has the last applied offset of each changelog partition. ``<store>.position`` beside it has a
store's Position. Offset -4 means unknown. Other negative offsets are never written, and skipped when read. Kafka
Streams writes the lines in hash order, Stateline in ascending order. Source: `OffsetCheckpoint` and `StoreQueryUtils`
of Kafka Streams. On disk: never change.

A file is replaced as a whole, so a crash leaves the old one or the new one. Only the owner of the task's lock writes
it. Any process may read it at any time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stateline_store.errors import DamagedDataError, InvalidArgumentError, NewerFormatError
from stateline_store.files.durable_files import refused, remove_file, replace_file
from stateline_store.position import Position, TopicPartition

OFFSET_CHECKPOINT = ".checkpoint"  # on disk: never change; a task's file of changelog offsets
OFFSET_UNKNOWN = -4  # on disk: never change; -1 to -3 have other meanings in Kafka Streams
_VERSION = 0  # on disk: never change
_NUMBER = re.compile(rb"[+-]?[0-9]{1,19}")
_WORD = re.compile(r"\S+", re.ASCII)
_LAST_PARTITION, _LAST_OFFSET = 2**31 - 1, 2**63 - 1
_LOG = logging.getLogger(__name__)


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Return the offsets in this file, also `OFFSET_UNKNOWN`, none without a file.

    Raises `DamagedDataError` with the line for any other text than described above, `NewerFormatError` for a newer
    version, and `RetryLaterError` if the file system refuses.
    """
    advice = (
        "Delete the file: a store that keeps its own offset goes on from that, any other is restored from its changelog"
    )
    return _read(path, advice)


def read_position(path: Path) -> Position:
    """Return the Position in this file, an empty one without a file. Unknown offsets are left out. Raises as
    `read_offset_checkpoint`."""
    advice = "Delete the file: queries with a bound then wait until the store has read on in its input"
    return Position.of((tp, offset) for tp, offset in _read(path, advice).items() if offset != OFFSET_UNKNOWN)


def write_offset_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file's offsets durably. Without offsets, delete the file.

    Raises `InvalidArgumentError` for an offset below 0 that is not `OFFSET_UNKNOWN`, and for a topic that does not fit
    into a line. Raises `RetryLaterError` naming the path when the file system refuses (full, read-only, no directory).
    The file then holds the old offsets or the new ones.
    """
    text = "".join([f"{_VERSION}\n{len(offsets)}\n", *(_line(tp, offsets[tp]) for tp in sorted(offsets))])
    if offsets:
        replace_file(path, text.encode(), only_writer=True)
        return
    try:
        remove_file(path)
    except OSError as error:
        raise refused(path, "written", error) from error


def _line(partition: TopicPartition, offset: int) -> str:
    if not (0 <= offset <= _LAST_OFFSET or offset == OFFSET_UNKNOWN):
        raise InvalidArgumentError(
            f"{offset} is not an offset of {partition}: 0 or more is, or {OFFSET_UNKNOWN} for an unknown one. "
            "Nothing was written."
        )
    if not _WORD.fullmatch(partition.topic) or not 0 <= partition.partition <= _LAST_PARTITION:
        raise InvalidArgumentError(
            f"{partition.topic!r} with partition {partition.partition} does not fit into a checkpoint: a topic's name "
            "has no white space, and partitions count from 0. Nothing was written."
        )
    return f"{partition.topic} {partition.partition} {offset}\n"


def _read(path: Path, advice: str) -> dict[TopicPartition, int]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise refused(path, "read", error) from error
    try:
        return _parsed(path, lines)
    except DamagedDataError as error:
        raise DamagedDataError(f"{path} is damaged: {error}. {advice}.") from error


def _parsed(path: Path, lines: list[bytes]) -> dict[TopicPartition, int]:
    if lines and (version := _number(lines[0], 1, "a version")) > _VERSION:
        raise NewerFormatError.of(path, f"version {version}", f"version {_VERSION}")
    if len(lines) < 2:
        raise DamagedDataError(f"it ends after line {len(lines)}, before the number of its entries")
    if version != _VERSION:
        raise DamagedDataError(f"line 1 says version {version}, and only version {_VERSION} is known here")
    count = _number(lines[1], 2, "a number of entries")
    offsets = dict(_entries(lines[2:]))
    if not len(offsets) == len(lines) - 2 == count:
        raise DamagedDataError(f"line 2 says {count} entries, and {len(offsets)} different ones follow")
    known = {tp: offset for tp, offset in offsets.items() if offset >= 0 or offset == OFFSET_UNKNOWN}
    for tp in offsets.keys() - known.keys():
        _LOG.warning("%s: offset %d of %s is skipped: it is no offset", path, offsets[tp], tp)
    return known


def _entries(lines: list[bytes]) -> Iterator[tuple[TopicPartition, int]]:
    for number, line in enumerate(lines, start=3):
        try:
            topic, partition, offset = line.split()
            if not line.startswith(topic):
                raise ValueError("white space before the topic")
            name = topic.decode()
        except ValueError as error:  # also UnicodeDecodeError
            raise DamagedDataError(f"line {number} is {line!r:.200}, not a topic, a partition and an offset") from error
        index = _number(partition, number, "a partition")
        if not 0 <= index <= _LAST_PARTITION:
            raise DamagedDataError(f"line {number} has partition {index}, and partitions count from 0")
        yield TopicPartition(name, index), _number(offset, number, "an offset")


def _number(text: bytes, line: int, what: str) -> int:
    if not _NUMBER.fullmatch(text) or abs(int(text)) > _LAST_OFFSET:
        raise DamagedDataError(f"line {line} has {text!r:.200} where {what} stands")
    return int(text)
