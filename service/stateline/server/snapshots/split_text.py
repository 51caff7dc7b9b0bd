"""A split of a partition as clients see it, opaque to them: ``start.end`` of its stored keys, base64url without
padding. An end of no characters is open. Pure."""

from __future__ import annotations

import base64

from stateline.serde.plain import BytesSerde, shown
from stateline_store import InvalidArgumentError
from stateline_store.scan import KeyRange

_bytes = BytesSerde()


def split_text(keys: KeyRange) -> str:
    """The text."""
    return f"{_text(keys.start)}.{_text(keys.end or b'')}"


def read_split(text: str) -> KeyRange:
    """What it says. Raises `InvalidArgumentError` for what is none."""
    start, dot, end = text.partition(".")
    try:
        if dot:
            return KeyRange(_bytes.parse_text(start), _bytes.parse_text(end) or None)
    except InvalidArgumentError:
        pass
    raise InvalidArgumentError(f"split={shown(text)} is none: name one that …/splits gives.")


def _text(boundary: bytes) -> str:
    return base64.urlsafe_b64encode(boundary).rstrip(b"=").decode()
