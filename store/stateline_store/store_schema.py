"""StoreSchema: what a query must know of a store beside its rows, whichever reader shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stateline_store.layout import StoreKind
from stateline_store.segments import Segments


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """What a store's rows are. `segments` is None for key-value stores; the times are milliseconds.

    `TransactionalStore.schema` gives a store's own; a process that only reads makes it from the declaration.
    Thread-safe: it never changes.
    """

    kind: StoreKind
    timestamped: bool = False
    segments: Segments | None = None
    window_size_ms: int = 0
    retain_duplicates: bool = False

    def of_stored_values(self) -> StoreSchema:
        """The same, to be answered with values as they are stored: in a timestamped store each behind its timestamp
        (`timestamped_rows`). For who passes them on, and takes them apart where they are shown."""
        return replace(self, timestamped=False) if self.timestamped else self

    def __str__(self) -> str:
        return f"timestamped {self.kind}" if self.timestamped else self.kind
