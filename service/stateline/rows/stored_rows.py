"""Stored rows by the column, in batches of bounded size. Pure.

Lengths are taken once, for the size of a batch and for Arrow's offsets. They and copies of lists were a good part of
the time per row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from operator import itemgetter

Row = tuple[bytes, bytes]


class StoredRows:
    """Names (stored keys) and values of the same rows, each with their lengths."""

    __slots__ = ("name_lengths", "names", "size", "value_lengths", "values")

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.names: list[bytes] = list(map(itemgetter(0), rows))
        self.values: list[bytes] = list(map(itemgetter(1), rows))
        self.name_lengths, self.value_lengths = list(map(len, self.names)), list(map(len, self.values))
        self.size = sum(self.name_lengths) + sum(self.value_lengths)
        """Bytes."""

    def __len__(self) -> int:
        return len(self.names)

    def add(self, other: StoredRows) -> None:
        self.names += other.names
        self.values += other.values
        self.name_lengths += other.name_lengths
        self.value_lengths += other.value_lengths
        self.size += other.size


def bounded(
    chunks: Generator[list[Row], None, None], most_rows: Callable[[], int], most_bytes: int
) -> Generator[StoredRows, None, None]:
    """Yield the rows in batches of up to `most_rows()`, and about so many bytes. A larger row is a batch of its own."""
    batch = StoredRows()
    with closing(chunks):
        for chunk in chunks:
            rows, most = StoredRows(chunk), most_rows()
            if len(batch) and (batch.size + rows.size > most_bytes or len(batch) + len(rows) > most):
                yield batch
                batch = StoredRows()
            if rows.size > most_bytes or len(rows) > most:
                yield from _cut(chunk, most_rows, most_bytes)
            else:
                batch.add(rows)
    if len(batch):
        yield batch


def _cut(rows: list[Row], most_rows: Callable[[], int], most_bytes: int) -> Iterator[StoredRows]:
    batch = list[Row]()
    size = 0
    for row in rows:
        row_size = len(row[0]) + len(row[1])
        if batch and (size + row_size > most_bytes or len(batch) >= most_rows()):
            yield StoredRows(batch)
            batch, size = [], 0
        batch.append(row)
        size += row_size
    yield StoredRows(batch)
