"""The OpenAPI document with examples that this application answers: its own stores, keys of their types. Pure:
no registry is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.query.kinds import KINDS
from stateline.serde.registered import json_of_text
from stateline_store.layout import STORE_KINDS

_STORE = "/v1/stores/{store}"
# Path below a store → the kinds of stores that answer there. Of a feed of changes there is no end to show.
_ANSWERED_BY: Mapping[str, tuple[str, ...]] = {
    "": STORE_KINDS,
    "/query": ("key_value", "versioned"),
    **{
        path: tuple(each for each in STORE_KINDS if kind.stores(each, of_key=of_key))
        for kind in KINDS
        for path, _, of_key in kind.paths()
    },
}
# Type → a key of it as it is written in a URL; of types that a registry knows there is none.
_KEYS = {
    "string": "a",
    "json": '"a"',
    "bytes": "YQ",
    "int32": "1",
    "int64": "1",
    "float64": "1.5",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "datetime": "2026-01-31T12:00:00Z",
}


def with_examples(
    document: Mapping[str, Any], stores: Sequence[StoreDefinition], keys: Mapping[str, str]
) -> dict[str, Any]:
    """The document with an example of each query that one of these stores answers: the first that does. `keys` has
    those of some stores, as they are written in a URL."""
    paths = {
        path: methods
        if (store := _first(stores, path)) is None
        else {method: _shown(operation, store, keys) for method, operation in methods.items()}
        for path, methods in document["paths"].items()
    }
    return {**document, "paths": paths}


def _first(stores: Sequence[StoreDefinition], path: str) -> StoreDefinition | None:
    kinds = _ANSWERED_BY.get(path.removeprefix(_STORE), ()) if path.startswith(_STORE) else ()
    return next((store for store in stores if store.plain_kind in kinds), None)


def _shown(operation: Mapping[str, Any], store: StoreDefinition, keys: Mapping[str, str]) -> dict[str, Any]:
    key = keys.get(store.name, _KEYS.get(store.key.name))
    given = {"store": store.name} if key is None else {"store": store.name, "key": key}
    shown = dict(operation)
    shown["parameters"] = [
        {**parameter, "example": given[parameter["name"]]}
        if parameter["in"] == "path" and parameter["name"] in given
        else parameter
        for parameter in operation["parameters"]
    ]
    if "requestBody" in operation:
        body: dict[str, Any] = {"type": "range", "limit": 10}
        if key is not None:
            body = {"type": "key", "key": json_of_text(store.key, key)}
        (media_type,) = operation["requestBody"]["content"]
        content = {media_type: {**operation["requestBody"]["content"][media_type], "example": body}}
        shown["requestBody"] = {**operation["requestBody"], "content": content}
    return shown
