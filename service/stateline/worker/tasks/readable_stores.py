"""Checks whether the declared types still read a store's rows.

A store's files have their types by name (`StoreTypes`). Schemas and models change under the same name: with one more
field, without a default, they read no earlier row. The owner checks one row when it opens a store. Other rows may be of
another version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.serde.model import ModelSerde
from stateline.serde.plain import Serde
from stateline.serde.registered import RegisteredSerde
from stateline_store import IsolationLevel, TransactionalStore, Windowed
from stateline_store.errors import InvalidArgumentError, SchemaRegistryUnavailableError, TopologyError
from stateline_store.layout import StoreKind
from stateline_store.reads.queries import run
from stateline_store.reads.query_types import (
    Query,
    RangeQuery,
    SessionRangeQuery,
    VersionedRangeQuery,
    WindowRangeQuery,
)
from stateline_store.rows.headers import without_headers

_ALL_ROWS: Mapping[StoreKind, Query[Any]] = {
    "key_value": RangeQuery(),
    "window": WindowRangeQuery(),
    "session": SessionRangeQuery(),
    "versioned": VersionedRangeQuery(),
}


def refuse_unreadable(definition: StoreDefinition, store: TransactionalStore, whose: str) -> None:
    """Raise `TopologyError` when the first row of this open store cannot be read as declared. `whose` is the task that
    has it. Raises `ConfigurationError` as its serdes."""
    if not (_may_change(definition.key) or _may_change(definition.value)):
        return
    with run(_ALL_ROWS[store.kind], store.reader(IsolationLevel.READ_COMMITTED), store.schema).result as rows:
        key, value = next(rows, (None, None))
    stored = value if isinstance(value, bytes | None) else value.value
    if stored is not None and store.headers:
        stored = without_headers(stored)
    _check(definition, definition.key, key.key if isinstance(key, Windowed) else key, whose)
    _check(definition, definition.value, stored, whose)


def _check(definition: StoreDefinition, serde: Serde, data: bytes | None, whose: str) -> None:
    if data is None or not _may_change(serde):
        return
    try:
        serde.check(data)
    except SchemaRegistryUnavailableError:
        return  # nobody can tell, and what is not read needs no schema
    except InvalidArgumentError as error:
        raise TopologyError(
            f"Store {definition.name!r} of {whose} has what cannot be read as it is declared: {error} Declare what "
            "reads that too, as by a default for each field that it lacks; or declare it as it was."
        ) from error


def _may_change(serde: Serde) -> bool:
    return isinstance(serde, RegisteredSerde | ModelSerde)
