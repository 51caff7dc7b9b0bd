"""Records of RocksDB's log format, which its write-ahead logs and its manifest are written in (db/log_format.h).

    file     := block*                                            32768 bytes each, the last one may be shorter
    block    := fragment* trailer                                 a trailer of less than 7 bytes is zeros
    fragment := crc:u32 length:u16 type:u8 (number:u32)? bytes    little-endian; `number` (of the log) in recycled logs
    type     := 1 whole | 2 first | 3 middle | 4 last             5 to 8: the same, of a recycled log

A record is what is in a whole fragment, or in a first one and those that follow it up to a last one. Checksums are not
compared here: RocksDB does that, and stops at what is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 32768
_CHECKSUM_BYTES = 4
_FRAGMENT = struct.Struct("<HB")  # length and type, behind the checksum
_HEADER_BYTES = _CHECKSUM_BYTES + _FRAGMENT.size
_NUMBER = struct.Struct("<I")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(1, 5)
_RECYCLED = 4  # a recycled log's types are larger by this


def read_records(path: Path, number: int = 0) -> Iterator[tuple[bytes, int]]:
    """Each record of this file and the file's length up to its end, as far as they can be read; `number` is that of a
    log. Where there are zeros instead of a fragment, it goes on with the next block, as RocksDB does
    (db/log_reader.cc).

    Raises `ValueError` at what it does not know (compressed logs, types of a newer RocksDB), and what `open` raises.
    """
    parts: list[bytes] = []
    before = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while at + _HEADER_BYTES <= len(block):
                length, kind = _FRAGMENT.unpack_from(block, at + _CHECKSUM_BYTES)
                if not (length or kind or parts):
                    break
                start = at + _HEADER_BYTES
                if _RECYCLED < kind <= _RECYCLED + _LAST:
                    if block[start : start + _NUMBER.size] != _NUMBER.pack(number):
                        return  # of the log that this file was before
                    start, kind = start + _NUMBER.size, kind - _RECYCLED
                at = start + length
                if kind > _LAST:
                    raise ValueError(f"{path} has a fragment of type {kind} before byte {before + start}")
                if at > len(block) or kind == 0 or (kind in (_WHOLE, _FIRST)) == bool(parts):
                    return
                parts.append(block[start:at])
                if kind in (_WHOLE, _LAST):
                    yield b"".join(parts), before + at
                    parts.clear()
            if len(block) < _BLOCK_BYTES:
                return
            before += len(block)
