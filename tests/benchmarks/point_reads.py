"""Committed point reads over HTTP, one after the other, until SIGTERM: argv is port, number of keys, output file.

Writes (begin, seconds) of every read as pairs of doubles, in the machine's byte order; begins are of
`time.monotonic`, which every process of a machine shares.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from array import array
from pathlib import Path

from http_client import Connection
from topic import TOPIC, key_of

_stopping = False


def _stop(number: int, frame: object) -> None:
    global _stopping
    _stopping = True


def read(port: int, keys: int) -> array[float]:
    """Read keys at random until told to stop."""
    taken, chosen = array("d"), random.Random(2)
    with Connection(port) as connection:
        while not _stopping:
            key = key_of(chosen.randrange(keys)).decode()
            begin = time.monotonic()
            status, body = connection.get(f"/v1/stores/{TOPIC}/keys/{key}?isolation_level=read_committed")
            taken.extend((begin, time.monotonic() - begin))
            assert status == 200, f"{key}: {status} {body[:500]!r}"
    return taken


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    Path(sys.argv[3]).write_bytes(read(int(sys.argv[1]), int(sys.argv[2])).tobytes())
