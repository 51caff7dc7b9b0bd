"""A query of the application's own, which a store answers by its method `query` (`stateline_store.StateStore`)."""

from __future__ import annotations

from dataclasses import dataclass

from stateline_store import Query


@dataclass(frozen=True, slots=True)
class CustomQuery(Query[bytes]):
    """`query` is JSON, and so is what comes back: as the value of one entry, whose key is empty."""

    query: bytes
