"""The option `keys`: the rows of some keys alone, each found by a seek. Pure.

Spark's own filters narrow nothing here. Up to 4.3.0 Spark keeps what a filter left of a Python source with the
DataFrame and not with the scan (`PythonDataSourceV2.readInfo`): an unfiltered use of the same DataFrame then lacks
rows, and of two filters in one query the last holds for both. So no reader may have `pushFilters`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stateline_store.errors import InvalidArgumentError

KEYS_AT_ONCE = 500
"""Of one request; server.limit.max has to allow as many."""
BYTES_AT_ONCE = 1024 * 1024
"""Of the keys of one request, as JSON: a quarter of what server.body.max.bytes is unless it is set."""
_WRITTEN: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "bytes": str,
    "int32": int,
    "int64": int,
    "float64": (int, float),
}


def read_keys(text: str) -> tuple[Any, ...]:
    """The keys in a list in JSON, as bodies of requests have them, each once. Raises `InvalidArgumentError`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise InvalidArgumentError(f"""keys={text[:60]!r} is no list in JSON: '["a", "b"]' is one.""")
    return tuple({json.dumps(key): key for key in found}.values())


def check_keys(keys: Iterable[Any], store: str, key_type: str) -> None:
    """Raise `InvalidArgumentError` for one that this store's keys cannot be. What JSON has here is not told from what
    it was before it was read (`[1,2]` and `[1, 2]` are two keys), so keys of type json are refused."""
    for key in keys:
        if key_type == "json":
            raise InvalidArgumentError(
                f"keys is not for keys of type json, as those of {store!r} are: name one by lower and upper."
            )
        if key_type in _WRITTEN and (isinstance(key, bool) or not isinstance(key, _WRITTEN[key_type])):
            raise InvalidArgumentError(
                f"keys has {key!r:.60}, and those of {store!r} are of type {key_type}: write them as the body of a "
                "request has them."
            )


def in_pieces(keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """All of these keys in as many requests as they need."""
    piece: list[Any] = []
    size = 0
    for key in keys:
        size += (added := len(json.dumps(key)) + 2)  # with a comma and a space
        if piece and (len(piece) == KEYS_AT_ONCE or size > BYTES_AT_ONCE):
            yield tuple(piece)
            piece, size = [], added
        piece.append(key)
    if piece:
        yield tuple(piece)
