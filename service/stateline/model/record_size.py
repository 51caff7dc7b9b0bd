"""How large records, keys and values may be: every limit, and what it derives from."""

from __future__ import annotations

from collections.abc import Mapping

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError
from stateline_store.rows.headers import Headers

_CLIENT_MAX_BYTES = 1_000_000  # librdkafka's default of `message.max.bytes`, which counts headers and framing, too
_FRAMING_BYTES = 256  # more than librdkafka's: lengths, timestamp, offset
_HEADER_BYTES = 6  # more than the lengths of a name and a value usually take
_HEADROOM_BYTES = 16_384  # what headers (the Position) and framing may take of a record that a worker writes
MAX_RECORD_BYTES = _CLIENT_MAX_BYTES - _HEADROOM_BYTES  # key and value together, in a worker where nothing else is set
# A broker's topic, and the embedded log (`MAX_MESSAGE_BYTES`), take about a mebibyte unless told otherwise: a longer
# key is none that is stored.
MAX_KEY_BYTES = 1024 * 1024


def max_record_bytes(producer: Mapping[str, str]) -> int:
    """Return the most bytes, key and value together, that a worker with these producer settings writes."""
    configured = producer.get("message.max.bytes")
    return int(configured) - _HEADROOM_BYTES if configured else MAX_RECORD_BYTES


def max_plain_bytes(producer: Mapping[str, str]) -> int:
    """Return the most bytes, key and value together, of a record without headers with these producer settings. A
    broker's topic may have a lower limit of its own."""
    return int(producer.get("message.max.bytes", _CLIENT_MAX_BYTES)) - _FRAMING_BYTES


def refuse_too_large(key: bytes | None, value: bytes | None, max_record_bytes: int, headers: Headers = ()) -> None:
    """Raise `InvalidArgumentError` for a record that the log would refuse, while it can still be told whose it is."""
    size = len(key or b"") + len(value or b"")
    if headers:
        size += sum(len(name.encode()) + len(content or b"") + _HEADER_BYTES for name, content in headers)
    if size > max_record_bytes:
        parts = f"Key {shown(key)}, its value and its headers" if headers else f"Key {shown(key)} and its value"
        raise InvalidArgumentError(
            f"{parts} have {size} bytes, but a record of the log takes {max_record_bytes}: make "
            "it smaller, or raise producer.message.max.bytes and the topic's max.message.bytes."
        )
