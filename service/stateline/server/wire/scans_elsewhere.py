"""Read scans that a worker or another node keeps for this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateline.query.values import Failure, Outcome, QueryRows
from stateline.query.wire import decode_outcome, decode_rows, scan_of
from stateline.server.wire.exchange import Exchange, Message
from stateline_store import CursorExpiredError, NotPresentError, StatelineError


class ScansElsewhere:
    """The open scans at the other end of one connection, by its numbers. For the event loop's thread.

    A request for more rows may take `timeout_s`. `with_shown` adds the caller's token to a message, if the other end
    needs it."""

    def __init__(
        self, exchange: Exchange, timeout_s: float, with_shown: Callable[[Message], Message] = lambda message: message
    ) -> None:
        self._exchange = exchange
        self._timeout_s = timeout_s
        self._with_shown = with_shown
        self._held: set[int] = set()

    def outcome(self, reply: Message) -> Outcome:
        """Return the outcome of a query's reply. Raises `StatelineError` if the other end did not understand the
        query."""
        if "outcome" not in reply:
            raise StatelineError(f"{self._exchange.who} refused a query: {reply.get('error')}")
        return decode_outcome(reply["outcome"], self._rest)

    def failure(self, reply: Message, what: str) -> StatelineError:
        """Return the error of a reply to a request that was not done. `what` completes the sentence "the other end
        …"."""
        outcome = decode_outcome(reply["outcome"], self._rest) if "outcome" in reply else None
        if isinstance(outcome, Failure):
            return outcome.error
        return StatelineError(f"{self._exchange.who} {what}: {reply.get('error', 'it answers something else')}")

    async def more(self, scan: int, limit: int) -> QueryRows:
        """Return a scan's next entries. Raises `CursorExpiredError` if the scan or the other end is gone."""
        self._held.discard(scan)
        message: Message = {"id": self._exchange.number(), "type": "more", "scan": scan, "limit": limit}
        message = self._with_shown(message)  # each page may come with another token
        try:
            reply = await self._exchange.request(message, self._timeout_s)
        except NotPresentError as error:
            raise CursorExpiredError(
                f"{self._exchange.who}, which had this scan, is gone. Start over, without the cursor."
            ) from error
        if "rows" in reply:
            return decode_rows(reply["rows"], self._rest)
        raise self.failure(reply, "did not read on")

    def drop(self, scan: int) -> None:
        """Close this scan at the other end."""
        self._held.discard(scan)
        if self._exchange.alive:
            self._exchange.send({"id": self._exchange.number(), "type": "drop", "scan": scan})

    def hold(self) -> None:
        """Renew the open scans. The other end closes scans that are not renewed."""
        if self._held and self._exchange.alive:
            self._exchange.send({"id": self._exchange.number(), "type": "hold", "scans": list(self._held)})

    def refuse(self, reply: Message) -> None:
        """Close the scan of a reply that came too late for its caller."""
        if (scan := scan_of(reply)) is not None:
            self.drop(scan)

    def _rest(self, scan: int) -> RestElsewhere:
        self._held.add(scan)
        return RestElsewhere(self, scan)


class RestElsewhere:
    """The `Rest` of a scan at the other end. One call of `more` uses it up."""

    def __init__(self, scans: ScansElsewhere, scan: int) -> None:
        self._scans = scans
        self._scan: int | None = scan
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        """Close the scan of an answer that was lost, because a query of several partitions was cancelled."""
        if self._scan is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._scans.drop, self._scan)  # any thread may free it

    async def more(self, limit: int) -> QueryRows:
        """Return the next entries, with a new `Rest`. Raises `CursorExpiredError` if the scan is closed or gone."""
        if self._scan is None:
            raise CursorExpiredError("This scan was closed. Start over.")
        scan, self._scan = self._scan, None
        try:
            return await self._scans.more(scan, limit)
        except BaseException:  # the reply may still come, with a scan that must be closed
            self._scans.drop(scan)
            raise

    def close(self) -> None:
        """Close the scan at the other end."""
        scan, self._scan = self._scan, None
        if scan is not None:
            self._scans.drop(scan)
