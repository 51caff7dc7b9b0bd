"""StoreSchema: the properties of a store that its queries need beside the rows of a reader."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stateline_store.layout import StoreKind
from stateline_store.rows.segments import Segments


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The form of a store's rows. `segments` is None for key-value stores. Times are milliseconds.

    `TransactionalStore.schema` has a store's own. A process that only reads makes it from the declaration. Thread-safe:
    it never changes.
    """

    kind: StoreKind
    timestamped: bool = False
    segments: Segments | None = None
    window_size_ms: int = 0
    retain_duplicates: bool = False

    def of_stored_values(self) -> StoreSchema:
        """Return the schema for answers with values as they are stored: in a timestamped store behind the timestamp
        (`timestamped_rows`). It serves processes that pass the values on."""
        return replace(self, timestamped=False) if self.timestamped else self

    def read_by_clock(self) -> StoreSchema:
        """Return the schema for reads that also hide windows and sessions by the clock (`Segments.by_clock`)."""
        return self if self.segments is None else replace(self, segments=replace(self.segments, by_clock=True))

    def __str__(self) -> str:
        return f"timestamped {self.kind}" if self.timestamped else self.kind
