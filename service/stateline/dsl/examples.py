"""Keys that an application gives as examples, of its stores and of their types. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stateline.model.store_definition import StoreDefinition
from stateline.serde.registered import json_of_text
from stateline_store import InvalidArgumentError, TopologyError


def check_examples(keys: Mapping[str, str], stores: Mapping[str, StoreDefinition]) -> None:
    """Raise `TopologyError` for the key of a store that there is not, or one that is not of its store's type."""
    for name, key in keys.items():
        if name not in stores:
            raise TopologyError(f"examples: there is no store {name!r}. There are: {', '.join(stores) or 'none'}.")
        try:
            json_of_text(stores[name].key, key)
        except InvalidArgumentError as error:
            raise TopologyError(f"examples: the key of {name!r}: {error}") from error
