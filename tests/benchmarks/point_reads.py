"""Point reads over HTTP, one after the other, until SIGTERM: argv is port, number of keys, output file, and the
isolation level, read_committed unless given.

Makes the file when it has read once. Then writes (begin, seconds) of every read as pairs of doubles, in the machine's
byte order; begins are of `time.monotonic`, which every process of a machine shares.
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


def read(port: int, keys: int, level: str, begun: Path) -> array[float]:
    """Read keys at random until told to stop; touch the file after the first."""
    taken, chosen = array("d"), random.Random(2)
    with Connection(port) as connection:
        while not _stopping:
            key = key_of(chosen.randrange(keys)).decode()
            begin = time.monotonic()
            status, body = connection.get(f"/v1/stores/{TOPIC}/keys/{key}?isolation_level={level}")
            taken.extend((begin, time.monotonic() - begin))
            assert status == 200, f"{key}: {status} {body[:500]!r}"
            if len(taken) == 2:
                begun.touch()
    return taken


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    level = sys.argv[4] if len(sys.argv) > 4 else "read_committed"
    output = Path(sys.argv[3])
    output.write_bytes(read(int(sys.argv[1]), int(sys.argv[2]), level, output).tobytes())
