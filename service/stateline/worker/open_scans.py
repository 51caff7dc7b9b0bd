"""`OpenScans`: the scans that servers may read on, on the thread that owns the stores."""

from __future__ import annotations

import itertools

from stateline.query import Rows
from stateline.query_reads import OpenScan
from stateline.worker.query_connection import QueryConnection
from stateline_store import CursorExpiredError, StoreClosedError

# Of one worker. Each pins files, and what was staged when it began: the first write after it copies that.
MAX_OPEN_SCANS = 256


class KeptScan:
    """The rest of a scan, by the number that its server knows it by."""

    def __init__(self, number: int, scan: OpenScan, client: QueryConnection) -> None:
        self.number, self.scan, self.client = number, scan, client

    async def more(self, limit: int) -> Rows:
        """Never called here: a server asks for it by number."""
        raise AssertionError(f"scan {self.number} is read through the socket, {limit} rows of it")

    def close(self) -> None:
        """Let go of the state."""
        self.scan.close()


class OpenScans:
    """Of all clients, the least recently used first. One that makes room for another is `CursorExpiredError` then."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: dict[int, KeptScan] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: QueryConnection, scan: OpenScan) -> KeptScan:
        """Own this scan from now on, for this client."""
        kept = KeptScan(next(self._numbers), scan, client)
        self._kept[kept.number] = kept
        if len(self._kept) > MAX_OPEN_SCANS:
            self._drop(next(iter(self._kept.values())))
        return kept

    def more(self, client: QueryConnection, number: int, limit: int) -> Rows:
        """The next entries. Raises `CursorExpiredError` when the scan is gone."""
        kept = self._kept.get(number)
        if kept is None or kept.client is not client:
            raise CursorExpiredError("This worker keeps the scan no more: begin anew, without the cursor.")
        del self._kept[number]
        try:
            entries = kept.scan.take(max(1, limit))
        except StoreClosedError as error:
            kept.close()
            raise CursorExpiredError("The worker closed the store that was scanned: begin anew.") from error
        except BaseException:
            kept.close()
            raise
        if kept.scan.ended:
            kept.close()
            return Rows(entries)
        self._kept[number] = kept
        return Rows(entries, truncated=True)

    def drop(self, client: QueryConnection, number: object) -> None:
        """Let go of a scan that is not wanted any more; of one that is gone already nothing happens."""
        kept = self._kept.get(number) if isinstance(number, int) else None
        if kept is not None and kept.client is client:
            self._drop(kept)

    def drop_all(self, client: QueryConnection) -> None:
        """This client is gone."""
        for kept in [each for each in self._kept.values() if each.client is client]:
            self._drop(kept)

    def _drop(self, kept: KeptScan) -> None:
        del self._kept[kept.number]
        kept.close()
