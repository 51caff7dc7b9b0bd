"""`StoreRows`: a store at one moment, in the columns of exports. It is of a running server's snapshot, or of a backup.

Times become `timestamp[us, UTC]`, the only times of Delta tables. Times after the year 9999, as the end of an unlimited
window, become its end, because few programs read later ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stateline.cli.progress import Progress
from stateline.cli.state.snapshot import schema_of
from stateline.client import backup
from stateline.client.lean.client import PLANNING_S, LeanClient, LeanRequest, segment
from stateline.client.lean.snapshot_rows import PartAddress, RowsQuery, batches
from stateline.spark.reading.lease import pinned
from stateline_store import Position
from stateline_store.snapshots.backup import backup_id

_TIMES = ("timestamp", "start", "end", "valid_to")
_TIME = pa.timestamp("us", "UTC")
_LAST_MS = 253_402_300_799_999
_LEASE_S = 300  # renewed meanwhile


class Exported(NamedTuple):
    """The outcome for a store: written and deleted rows, and the file below the store's folder."""

    outcome: str
    rows: int = 0
    deleted: int = 0
    at: str = ""


@dataclass(frozen=True, slots=True)
class StoreRows:
    """`parts` are its partitions, each in the order of the store. They can be read again. `moment` orders as time does.
    `seen` are rows that were read, for `progress`."""

    application_id: str
    store: str
    moment: str
    position: Position
    columns: pa.Schema
    parts: tuple[Callable[[], Iterator[pa.RecordBatch]], ...]
    progress: Progress
    seen: list[int] = field(default_factory=lambda: [0])

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(each.name, _TIME if each.name in _TIMES else each.type) for each in self.columns])

    @property
    def keys(self) -> list[str]:
        """The columns that identify a row."""
        if "start" in self.columns.names:
            return ["key", "start", "end"]
        return ["key", "timestamp"] if "valid_to" in self.columns.names else ["key"]

    @property
    def name(self) -> str:
        """A name for what is exported: another application or Position has another name. Later names come later."""
        told = f"{self.application_id}/{self.about['stateline.position']}"
        return f"{self.moment}-{hashlib.blake2b(told.encode(), digest_size=4).hexdigest()}"

    @property
    def about(self) -> dict[str, str]:
        """Metadata of files and tables: the application and the store, its Position, and the moment of the rows."""
        return {
            "stateline.application": self.application_id,
            "stateline.store": self.store,
            "stateline.position": json.dumps(self.position.to_json(), sort_keys=True),
            "stateline.moment": self.moment,
        }

    def read(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the rows of each partition."""
        for part in self.parts:
            yield self._converted(part())

    def _converted(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for batch in found:
            arrays = (_as_type(array, kind) for array, kind in zip(batch.columns, schema.types, strict=True))
            yield pa.RecordBatch.from_arrays(list(arrays), schema=schema)
            self.seen[0] += batch.num_rows
            self.progress.show(self.seen[0])


@contextmanager
def of_server(server: LeanClient, stores: Sequence[str], progress: Progress) -> Iterator[tuple[StoreRows, ...]]:
    """Yield these stores, all of one snapshot, which is released after the block. Raises the server's refusals."""
    said = {
        store: server.ask(LeanRequest("GET", f"/v1/stores/{segment(store)}"), patience_s=PLANNING_S) for store in stores
    }
    application_id = server.ask(LeanRequest("GET", "/v1/topology"), patience_s=PLANNING_S)["application_id"]
    with pinned(server, stores, _LEASE_S) as snapshot:
        moment = backup_id(snapshot["created_at"])
        yield tuple(
            _of_snapshot(
                server,
                StoreRows(application_id, store, moment, Position(), schema_of(said[store]), (), progress),
                snapshot["stores"][store],
            )
            for store in stores
        )


def of_backup(
    location: str, as_of: str | None, application_id: str | None, stores: Sequence[str], progress: Progress
) -> tuple[StoreRows, ...]:
    """Return these stores, all of one backup. Raises as `stateline.client.backup`."""
    found = backup(location, as_of, application_id=application_id)
    opened = [found.store(store) for store in stores]
    return tuple(
        StoreRows(
            *(found.application_id, each.name, found.id, each.position, each.schema.remove_metadata()),
            tuple(partial(each.batches, [partition]) for partition in each.partitions),
            progress,
        )
        for each in opened
    )


def _of_snapshot(server: LeanClient, rows: StoreRows, parts: Mapping[str, Any]) -> StoreRows:
    """Return these rows with the partitions of their snapshot."""
    position, query = Position(), RowsQuery(tuple(rows.columns.names))
    for part in parts.values():
        position = position.merge(Position.from_json(part["position"]))
    addresses = [PartAddress.of(parts[number]) for number in sorted(parts, key=int)]
    reads = tuple(partial(_streamed, server, address, query) for address in addresses)
    return replace(rows, position=position, parts=reads)


def _streamed(server: LeanClient, address: PartAddress, query: RowsQuery) -> Iterator[pa.RecordBatch]:
    with closing(batches(address.at(server), address.path, query)) as found:
        yield from found


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind != _TIME:
        return array.cast(kind)
    known_ms = pc.min_element_wise(array.cast(pa.int64()), _LAST_MS, skip_nulls=False)
    return pc.multiply(known_ms, 1000).view(_TIME)
