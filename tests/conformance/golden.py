"""What Kafka Streams itself writes: `vectors.json`, made by the Java program beside it (README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, overload

FOLDER = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text())


def section(name: str) -> list[dict[str, Any]]:
    """The vectors of one section, never none."""
    vectors: list[dict[str, Any]] = VECTORS[name]
    assert vectors, f"vectors.json has nothing in {name!r}"
    return vectors


@overload
def unhex(text: str) -> bytes: ...
@overload
def unhex(text: str | None) -> bytes | None: ...
def unhex(text: str | None) -> bytes | None:
    """The bytes of a vector; None stays None."""
    return None if text is None else bytes.fromhex(text)
