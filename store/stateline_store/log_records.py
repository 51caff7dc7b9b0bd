"""Records of RocksDB's log format, which its write-ahead logs and its manifest are written in (db/log_format.h).

    file     := block*                                            32768 bytes each, the last one may be shorter
    block    := fragment* trailer                                 a trailer of less than 7 bytes is zeros
    fragment := crc:u32 length:u16 type:u8 bytes                  little-endian
    type     := 1 whole | 2 first | 3 middle | 4 last             others are of recycled and of compressed logs

A record is what is in a whole fragment, or in a first one and those that follow it up to a last one. Checksums are not
compared here: RocksDB does that, and stops at what is damaged.
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


def read_records(path: Path, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Each record of this file and the file's length up to its end, as far as they can be read, beginning with the
    first that begins at `start`, which is a block's beginning, or behind it. Where there are zeros instead of a
    fragment, it goes on with the next block, as RocksDB does (db/log_reader.cc).

    Raises `ValueError` at what it does not know (logs that are recycled or compressed, which RocksDB does only when
    told to, and types of a newer one), and what `open` raises.
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
                content = at + _HEADER_BYTES
                at = content + length
                if kind > _LAST:
                    raise ValueError(f"{path} has a fragment of type {kind} before byte {before + content}")
                is_within = is_within and kind in (_MIDDLE, _LAST)
                if is_within:
                    continue
                if at > len(block) or kind == 0 or (kind in (_WHOLE, _FIRST)) == bool(parts):
                    return
                parts.append(block[content:at])
                if kind in (_WHOLE, _LAST):
                    yield b"".join(parts), before + at
                    parts.clear()
            if len(block) < BLOCK_BYTES:
                return
            before += len(block)
