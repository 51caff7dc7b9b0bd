"""MurmurHash3, the x64 form of 128 bits, with the seed of Kafka Streams' joins by foreign key. In topics: never
change."""

from __future__ import annotations

import struct
from functools import lru_cache

_SEED = 104729
_BITS = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK, _HASH = struct.Struct("<QQ"), struct.Struct(">QQ")
_SHORT = 1024  # bytes


def hash128(data: bytes) -> bytes:
    """Return the hash as 16 bytes: two big-endian halves. Those of short data are remembered for a while."""
    return _remembered(data) if len(data) <= _SHORT else _hashed(data)


def _hashed(data: bytes) -> bytes:
    one = two = _SEED
    whole = len(data) & ~15
    # The hot path of joins by foreign key: no calls. What is turned needs no mask before it is multiplied and masked.
    for low, high in _BLOCK.iter_unpack(data[:whole]):
        low, high = low * _C1 & _BITS, high * _C2 & _BITS
        one ^= (low << 31 | low >> 33) * _C2 & _BITS
        one = ((one << 27 | one >> 37) + two) * 5 + 0x52DCE729 & _BITS
        two ^= (high << 33 | high >> 31) * _C1 & _BITS
        two = ((two << 31 | two >> 33) + one) * 5 + 0x38495AB5 & _BITS
    low, high = _BLOCK.unpack(data[whole:].ljust(_BLOCK.size, b"\0"))
    low, high = low * _C1 & _BITS, high * _C2 & _BITS
    one ^= (low << 31 | low >> 33) * _C2 & _BITS ^ len(data)
    two ^= (high << 33 | high >> 31) * _C1 & _BITS ^ len(data)
    one = one + two & _BITS
    two = two + one & _BITS
    one, two = _finished(one), _finished(two)
    one = one + two & _BITS
    return _HASH.pack(one, two + one & _BITS)


_remembered = lru_cache(maxsize=16_384)(_hashed)


def _finished(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _BITS
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return number ^ number >> 33
