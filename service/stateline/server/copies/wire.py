"""Messages of two nodes over a connection for files of stores. It is greeted like a link (`nodes.greeting`). It is
beside the link, so that heartbeats and reads do not wait for files.

    dialer   := {"type": "copy", "task", "stores": [names]}, then for each file {"file": path, "from": offset}
    listener := {"copy": as `StoreCopy.to_json`}, then for each file {"bytes": n}, n bytes as they are, {"digest"}
              | {"refused": why, "for_good": whether asking again is of no use}     instead of any of them

Frames as in `stateline.query.wire`. The checkpoint that is sent lives as long as the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from stateline.query.wire import LENGTH, decode_message, frame, frame_size

# At a time: what the event loop is held up with.
PIECE_BYTES = 256 * 1024
# A node that says or takes nothing for so long counts as gone.
SILENT_S = 15.0


def say(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(frame(message))


async def heard(reader: asyncio.StreamReader, silent_s: float = SILENT_S) -> dict[str, Any]:
    """Return the next frame. Raises `OSError` or `IncompleteReadError` if the other end is gone or silent for so long,
    `InvalidArgumentError` for anything else than a frame."""
    async with asyncio.timeout(silent_s):
        size = frame_size(await reader.readexactly(LENGTH.size))
        return decode_message(await reader.readexactly(size))
