"""A bare ASGI application: what a point query costs without Stateline's server. `bench_http` compares them.

It reads the same key from a secondary of the same partition, looks for a newer commit before, and answers the value as
JSON: no parameters but the key, no position, no failures. Started as ``bare_asgi.py STATE_DIR PORT``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from processes import Table
from topic import PARTITIONS

from stateline.serde.partitioner import home_partition
from stateline_store import SecondaryReader

_HEADERS = [(b"content-type", b"application/json")]


class Bare:
    """Reads of the benchmark's table, by the last segment of the path."""

    def __init__(self, readers: list[SecondaryReader]) -> None:
        self._readers = readers

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        key: bytes = scope["raw_path"].rpartition(b"/")[2]
        reader = self._readers[home_partition(key, PARTITIONS)]
        if reader.is_behind:
            reader.refresh()
        stored = reader.get(key)
        body = orjson.dumps({"key": key.decode(), "value": None if stored is None else stored[8:].decode()})
        status = 404 if stored is None else 200
        headers = [*_HEADERS, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    state_dir, port = Path(sys.argv[1]), int(sys.argv[2])
    table = Table(state_dir)
    with tempfile.TemporaryDirectory() as scratch:
        app = Bare([table.reader(partition, Path(scratch)) for partition in range(PARTITIONS)])
        uvicorn.run(app, port=port, log_level="error", access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
