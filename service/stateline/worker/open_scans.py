"""`OpenScans`: the scans that servers may read on, on the thread that owns the stores."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from stateline.query import Rows
from stateline.query_reads import OpenScan
from stateline.worker.query_connection import QueryConnection
from stateline_store import CursorExpiredError, StoreClosedError

# Of one worker. Each pins files, and what was staged when it began: the first write after it copies that.
MAX_OPEN_SCANS = 256


class _Kept(NamedTuple):
    client: QueryConnection
    scan: OpenScan


class OpenScans:
    """Of all clients, the least recently used first. One that makes room for another is `CursorExpiredError` then."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: dict[int, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: QueryConnection, scan: OpenScan) -> int:
        """Own this scan from now on; the number that this client knows it by."""
        number = next(self._numbers)
        self._kept[number] = _Kept(client, scan)
        if len(self._kept) > MAX_OPEN_SCANS:
            self._drop(next(iter(self._kept)))
        return number

    def more(self, client: QueryConnection, number: int, limit: int) -> Rows:
        """The next entries. Raises `CursorExpiredError` when the scan is gone."""
        kept = self._kept.get(number)
        if kept is None or kept.client is not client:
            raise CursorExpiredError("This worker keeps the scan no more: begin anew, without the cursor.")
        del self._kept[number]
        try:
            rows = kept.scan.rows(max(1, limit))
        except StoreClosedError as error:
            kept.scan.close()
            raise CursorExpiredError("The worker closed the store that was scanned: begin anew.") from error
        except BaseException:
            kept.scan.close()
            raise
        if rows.rest is not None:
            self._kept[number] = kept
        return rows

    def drop(self, client: QueryConnection, number: object) -> None:
        """Let go of a scan that is not wanted any more; of one that is gone already nothing happens."""
        if isinstance(number, int) and (kept := self._kept.get(number)) is not None and kept.client is client:
            self._drop(number)

    def drop_all(self, client: QueryConnection) -> None:
        """This client is gone."""
        for number in [number for number, kept in self._kept.items() if kept.client is client]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._kept.pop(number).scan.close()
