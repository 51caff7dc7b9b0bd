"""The option `keys`: the rows of some keys alone, each found by a seek. Pure.

Spark's own filters narrow nothing here. Up to 4.3.0 Spark keeps what a filter left of a Python source with the
DataFrame and not with the scan (`PythonDataSourceV2.readInfo`): an unfiltered use of the same DataFrame then lacks
rows, and of two filters in one query the last holds for both. So no reader may have `pushFilters`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stateline import serdes
from stateline.serde.plain import Serde
from stateline_store.errors import InvalidArgumentError

KEYS_AT_ONCE = 500
"""Of one request; server.limit.max has to allow as many."""
BYTES_AT_ONCE = 1024 * 1024
"""Of the keys of one request, as JSON: a quarter of what server.body.max.bytes is unless it is set."""
_SERDES: Mapping[str, Serde] = {
    each.name: each for each in (serdes.string, serdes.bytes, serdes.int32, serdes.int64, serdes.float64)
}


def read_keys(text: str) -> tuple[Any, ...]:
    """The keys in a list in JSON, as bodies of requests have them. Raises `InvalidArgumentError`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise InvalidArgumentError(f"""keys={text[:60]!r} is no list in JSON: '["a", "b"]' is one.""")
    return tuple(found)


def distinct_keys(keys: Iterable[Any], store: str, key_type: str) -> tuple[Any, ...]:
    """These keys, each once: a server knows two that are the same bytes only within one request.

    Raises `InvalidArgumentError` for one that this store's keys cannot be. What JSON has here is not told from what it
    was before it was read (`[1,2]` and `[1, 2]` are two keys), so keys of type json are refused.
    """
    found = dict[bytes, Any]()
    for key in keys:
        if key_type == "json":
            raise InvalidArgumentError(
                f"keys is not for keys of type json, as those of {store!r} are: name one by lower and upper."
            )
        try:
            stored = _SERDES[key_type].from_json(key) if key_type in _SERDES else json.dumps(key).encode()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"keys has {key!r:.60}, and those of {store!r} are {key_type}: {error}"
            ) from error
        found.setdefault(stored, key)
    return tuple(found.values())


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
