"""The timestamps and headers that buffers of operators have in their changelogs, from their rows.

`BufferedChanges` and `UnmatchedRows` give them when they write a row. They are needed once more when a changelog is
written again.
"""

from __future__ import annotations

from collections.abc import Callable

from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import BUFFER_VERSION, origin
from stateline.serde.buffered_change import BufferedChangeSerde
from stateline.serde.unmatched import ENTRY, UnmatchedKeySerde
from stateline_store.rows.timestamped_rows import TIMESTAMP


def held_origin(definition: StoreDefinition) -> Callable[[bytes, bytes], bytes] | None:
    """Return the function that gives a row's origin (`TransactionalStore.keep_origins`) by its key and value. Returns
    None for a store that is no buffer of an operator."""
    value = definition.value
    if definition.is_operators and isinstance(value, BufferedChangeSerde):
        headers = BUFFER_VERSION if value.is_change else ()
        return lambda key, row: origin(TIMESTAMP.unpack_from(row)[0], headers)
    if definition.is_operators and isinstance(definition.key, UnmatchedKeySerde):
        return lambda key, row: origin(ENTRY.unpack_from(key)[0], ())
    return None
