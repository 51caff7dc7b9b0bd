"""Layout: what decides how a store's rows are written, kept in the database beside them.

The name of a store's directory tells its value format (`directory.py`); everything else that bytes cannot tell is
here. On disk, in the row ``layout`` of the column family `offsets` (never change): UTF-8 JSON, for example
``{"kind": "window", "retain_duplicates": false, "segment_interval_ms": 60000, "timestamped": true}``. A database
without that row holds a key-value store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from stateline_store.errors import DamagedDataError, NewerFormatError, TopologyError

StoreKind: TypeAlias = Literal["key_value", "window", "session", "versioned"]  # on disk: never change
STORE_KINDS: tuple[StoreKind, ...] = get_args(StoreKind)


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are written. `segment_interval_ms` is None for a kind without segments.

    Thread-safe: it never changes.
    """

    kind: StoreKind
    timestamped: bool = False
    segment_interval_ms: int | None = None
    retain_duplicates: bool = False

    def encode(self) -> bytes:
        """The row's bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, where: object = "A store") -> Layout:
        """Read them. Raises `NewerFormatError` for those of a newer version, which `where` has, and `DamagedDataError`
        for bytes that are none.
        """
        try:
            members: dict[str, Any] = json.loads(data)
            known = [field.name for field in fields(cls)]
            if more := members.keys() - known:
                raise NewerFormatError.of(where, f"a layout with {sorted(more)!r:.200}", ", ".join(known))
            layout = cls(**members)
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedDataError(f"{data!r:.200} is no layout of a store: {error}.") from error
        if not isinstance(layout.kind, str):
            raise DamagedDataError(f"{data!r:.200} names no kind of store; {', '.join(STORE_KINDS)} are known.")
        if layout.kind not in STORE_KINDS:
            raise NewerFormatError.of(where, f"a store of kind {layout.kind!r:.200}", ", ".join(STORE_KINDS))
        return layout

    def check(self, stored: Layout, directory: Path) -> None:
        """Refuse rows that were written in another layout than this one, which the application declares.

        Raises `TopologyError`: nobody but the user knows which one is meant. Other segments are none: a database keeps
        the interval that it began with, whatever its retention becomes.
        """
        if stored.kind != self.kind or stored.timestamped != self.timestamped:
            raise TopologyError(
                f"{directory} holds a {stored.description} store, but the application declares a {self.description} "
                "store of that name: give it another name, or delete the directory and the changelog topic, which is "
                "of the old kind too, to begin anew."
            )
        if stored.retain_duplicates != self.retain_duplicates:
            raise TopologyError(
                f"{directory} was written with retain_duplicates={stored.retain_duplicates}, but the store is declared "
                f"with {self.retain_duplicates}: declare it as it was, or give it another name."
            )

    @property
    def description(self) -> str:
        """The kind in words: ``timestamped key_value``."""
        return f"timestamped {self.kind}" if self.timestamped else self.kind


KEY_VALUE = Layout("key_value")
