"""Reads and appends records of RocksDB's log format, that of its write-ahead logs and its manifest (db/log_format.h).

    file     := block*                                            32768 bytes each, the last one may be shorter
    block    := fragment* trailer                                 a trailer of less than 7 bytes is zeros
    fragment := crc:u32 length:u16 type:u8 bytes                  little-endian
    type     := 1 whole | 2 first | 3 middle | 4 last             others are of recycled and of compressed logs

A record is the bytes of a whole fragment, or of a first one and the following ones up to a last one. Checksums are only
compared on request and in fragments of other types: RocksDB compares all, and stops at damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 32768
_CHECKSUM_BYTES = 4
_FRAGMENT = struct.Struct("<HB")  # length and type, behind the checksum
_HEADER_BYTES = _CHECKSUM_BYTES + _FRAGMENT.size
_WHOLE, _FIRST, _MIDDLE, _LAST = range(1, 5)
_RECYCLED = frozenset((5, 6, 7, 8, 11, 131))  # the log's number, in four bytes, comes before what is in them


class UnreadableLogError(ValueError):
    """A log that continues with bytes that are no record, as from elsewhere on the disk, or with a record of another
    RocksDB. A log that is only not written to its end just ends."""

    def __init__(self, path: Path, at: int, *, is_newer: bool = False) -> None:
        """Make the error. `is_newer`: there is a fragment with the right checksum and an unknown type."""
        what = "a record of a type that this version does not know" if is_newer else "what is no record"
        super().__init__(f"{path} has {what} at byte {at}")
        self.is_newer = is_newer


def read_records(path: Path, start: int = 0, *, checked: bool = False) -> Iterator[tuple[bytes, int]]:
    """Yield each record of this file and the file's length up to its end, as far as they can be read, from the first
    record that begins at `start` or behind it. `start` is a block's beginning. `checked`: with the right checksum, at
    some 10 MB/s. At zeros instead of a fragment, reading continues with the next block, as RocksDB does
    (db/log_reader.cc).

    Raises `UnreadableLogError` before the file's end, and the errors of `open`.
    """
    parts: list[bytes] = []
    before, is_within = start, start > 0
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(BLOCK_BYTES):
            at = 0
            while at + _HEADER_BYTES <= len(block):
                length, kind = _FRAGMENT.unpack_from(block, at + _CHECKSUM_BYTES)
                if not (length or kind or parts):
                    break
                begin, content = at, at + _HEADER_BYTES
                at = content + length
                if kind > _LAST:
                    raise UnreadableLogError(path, before + begin, is_newer=_is_intact(block, begin))
                is_within = is_within and kind in (_MIDDLE, _LAST)
                if is_within:
                    continue
                if at > len(block) < BLOCK_BYTES:
                    return
                is_next = kind > 0 and (kind in (_WHOLE, _FIRST)) != bool(parts)
                if at > len(block) or not is_next or (checked and not _is_intact(block, begin)):
                    raise UnreadableLogError(path, before + begin)
                parts.append(block[content:at])
                if kind in (_WHOLE, _LAST):
                    yield b"".join(parts), before + at
                    parts.clear()
            if len(block) < BLOCK_BYTES:
                return
            before += len(block)


def append_record(path: Path, record: bytes) -> None:
    """Append a record to this log, which ends with a whole one. Nothing is synced. Raises `OSError`."""
    with path.open("ab") as file:
        at, begin, end, is_next = file.tell() % BLOCK_BYTES, 0, -1, False
        while end < len(record):
            if BLOCK_BYTES - at < _HEADER_BYTES:
                file.write(bytes(BLOCK_BYTES - at))
                at = 0
            end = min(len(record), begin + BLOCK_BYTES - at - _HEADER_BYTES)
            kind = ((_WHOLE, _FIRST), (_LAST, _MIDDLE))[is_next][end < len(record)]
            behind = bytes([kind]) + record[begin:end]
            file.write(_masked(crc32c(behind)).to_bytes(_CHECKSUM_BYTES, "little"))
            file.write((end - begin).to_bytes(2, "little") + behind)
            at, begin, is_next = at + _HEADER_BYTES + end - begin, end, True


def _is_intact(block: bytes, at: int) -> bool:
    """Return whether a whole fragment begins here, by its checksum: of its type and the bytes behind."""
    length, kind = _FRAGMENT.unpack_from(block, at + _CHECKSUM_BYTES)
    end = at + _HEADER_BYTES + length + (4 if kind in _RECYCLED else 0)
    wanted = int.from_bytes(block[at : at + _CHECKSUM_BYTES], "little")
    return end <= len(block) and _masked(crc32c(block[at + _HEADER_BYTES - 1 : end])) == wanted


def _masked(crc: int) -> int:
    """Return the checksum as a log has it (util/crc32c.h)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4). zlib has another polynomial."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = [_crc32c_of(byte) for byte in range(256)]
