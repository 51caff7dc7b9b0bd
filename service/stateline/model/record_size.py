"""How large a record may be that the log takes, found out while it can still be told whose it is."""

from __future__ import annotations

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

HEADROOM_BYTES = 16_384  # what headers (the Position) and framing may take of a record
MAX_RECORD_BYTES = 1_000_000 - HEADROOM_BYTES  # librdkafka's default `message.max.bytes`


def refuse_too_large(key: bytes | None, value: bytes | None, max_record_bytes: int) -> None:
    """Raise `InvalidArgumentError` for a record that the log would refuse, while it can still be told whose it is."""
    size = len(key or b"") + len(value or b"")
    if size > max_record_bytes:
        raise InvalidArgumentError(
            f"Key {shown(key)} and its value have {size} bytes, but a record of the log takes {max_record_bytes}: make "
            "it smaller, or raise producer.message.max.bytes and the topic's max.message.bytes."
        )
