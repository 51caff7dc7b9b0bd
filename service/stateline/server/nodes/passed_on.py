"""Large reads of an asking node, which a scan process of this node answers (`server.scan.processes`).

The asking node's messages go there as they are, and the replies come back. So no row is looked at here. Numbers of
scans tell where a scan is: the scan process begins with a large random one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stateline.query.wire import scan_of
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.greeting import Hello
from stateline.server.wire.exchange import Exchange, Message
from stateline_store import NotPresentError

Take = Callable[[Message], None]
ToScans = Callable[[Hello, ProvenConnection, Take], Awaitable[Exchange | None]]
"""Connects with a scan process. None if there is none now."""

_TIMEOUT_S = 60.0  # longer than the asking node waits


class PassedOn:
    """One per asking node, for the event loop's thread."""

    def __init__(self, hello: Hello, proven: ProvenConnection, to_scans: ToScans) -> None:
        self._asking, self._to_scans = (hello, proven), to_scans
        self._exchange: Exchange | None = None
        self._connecting = asyncio.Lock()

    async def answered(self, message: Message) -> dict[str, Any] | None:
        """Return the scan process's reply to a query. None if there is no scan process, or if it ends meanwhile: then
        answer here."""
        async with self._connecting:
            if not self._is_there:
                self._exchange = await self._to_scans(*self._asking, self._take)
        return await self._asked(message)

    async def more(self, message: Message) -> dict[str, Any] | None:
        """Return the reply to "more". None if the scan process has ended, and its scans with it."""
        return await self._asked(message)

    def tell(self, message: Message) -> None:
        """Pass on what has no reply."""
        if self._exchange is not None and self._is_there:
            self._exchange.send(message)

    async def close(self) -> None:
        if self._exchange is not None:
            await self._exchange.close()

    @property
    def _is_there(self) -> bool:
        return self._exchange is not None and self._exchange.alive

    async def _asked(self, message: Message) -> dict[str, Any] | None:
        if self._exchange is None:
            return None
        try:
            reply = await self._exchange.request(message, _TIMEOUT_S)
        except NotPresentError:
            return None
        except asyncio.CancelledError:
            self.tell({"id": message["id"], "type": "cancel"})
            raise
        del reply["id"]
        return reply

    def _take(self, reply: Message) -> None:
        """Close the scan of a reply that came too late."""
        if (scan := scan_of(reply)) is not None:
            self.tell({"type": "drop", "scan": scan})
