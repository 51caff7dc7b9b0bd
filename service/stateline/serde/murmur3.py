"""MurmurHash3, the x64 form of 128 bits, with the seed of Kafka Streams' joins by foreign key. In topics: never
change."""

from __future__ import annotations

import struct

from mmh3 import mmh3_x64_128_digest

_SEED = 104729
_LITTLE, _BIG = struct.Struct("<QQ"), struct.Struct(">QQ")


def hash128(data: bytes) -> bytes:
    """Return the hash as 16 bytes: two big-endian halves."""
    return _BIG.pack(*_LITTLE.unpack(mmh3_x64_128_digest(data, _SEED)))
