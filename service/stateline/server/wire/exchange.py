"""Exchange frames (`stateline.query.wire`) over one connection of the event loop.

Each request has a number. Its reply has the same number, and replies come in any order. All other messages go to a
callback.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from stateline.processes.seldom import seldom
from stateline.query.wire import Frames, decode_message, frame
from stateline.server.wire.streams import Arrivals
from stateline_store import InvalidArgumentError, NotPresentError

Message = dict[str, Any]

_log = seldom(__name__)


class Exchange(asyncio.Protocol):
    """One end of a connection. It receives from `begin` on.

    `take` gets every message that is not an awaited reply. `who` names the other end in error messages. Create and use
    it on the event loop's thread."""

    def __init__(
        self, arrivals: Arrivals, writer: asyncio.StreamWriter, who: str, take: Callable[[Message], None]
    ) -> None:
        self._arrivals, self._writer = arrivals, writer
        self.is_closing = writer.transport.is_closing
        """Whether the connection is being closed from this end."""
        self.who = who
        self._take = take
        self._numbers = itertools.count(1)
        self._pending: dict[int, Callable[[Message | None], None]] = {}
        self.heard_at_s = 0.0
        """The time of the last received bytes, by the loop's clock."""
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []  # frames that go out together
        self._frames = Frames()
        self._is_receiving = False  # messages sent meanwhile go out at its end
        self._over = asyncio.Event()
        self.is_over = False
        """Whether the connection is lost."""

    async def begin(self) -> None:
        """Receive messages from now on, first those that have already arrived."""
        try:
            rest, has_ended = await self._arrivals.rest()
        except OSError:
            rest, has_ended = b"", True
        self._writer.transport.set_protocol(self)
        if rest:
            self.data_received(rest)
        if has_ended:
            await self.close()

    @property
    def alive(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        # A failed write closes the transport before `connection_lost` is called.
        return not self.is_over and not self.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that wait because the other end does not read."""
        return self._writer.transport.get_write_buffer_size()

    def number(self) -> int:
        """Return the number for the next request, from 1 on."""
        return next(self._numbers)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. The call does not show whether it arrives. Raises `InvalidArgumentError` if it is too large.

        Messages of one turn of the loop go out in one write, because a write costs more than a message.
        """
        self._waiting.append(frame(message))
        if len(self._waiting) == 1 and not self._is_receiving:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        frames, self._waiting = self._waiting, []
        if frames and not self._writer.is_closing():
            self._writer.write(frames[0] if len(frames) == 1 else b"".join(frames))

    async def request(
        self,
        message: Message,
        timeout_s: float,
        within: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
    ) -> Message:
        """Send a request with its number as `id`, and return the reply.

        Raises `NotPresentError` if the other end hangs up, or does not reply within `timeout_s`. `within` makes the
        time limit. If the caller is cancelled, `take` gets the reply."""
        try:
            async with within(timeout_s):
                return await self._reply(message)
        except TimeoutError as error:
            raise NotPresentError(f"{self.who} did not answer within {timeout_s:g} s: ask again.") from error

    async def _reply(self, message: Message) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Message | None) -> None:
            if future.done():  # the caller was just cancelled
                if reply is not None:
                    self._take(reply)
            elif reply is None:
                future.set_exception(NotPresentError(f"{self.who} hung up: ask again in a moment."))
            else:
                future.set_result(reply)

        self.ask(message, on_reply)
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take(future.result())  # the caller was cancelled after the reply had arrived
            raise
        finally:
            self._pending.pop(message["id"], None)

    def ask(self, message: Message, on_reply: Callable[[Message | None], None]) -> None:
        """Send a request without waiting. `on_reply` is called once: with the reply, or with None if the other end
        hangs up first. Raises `NotPresentError` if it has already hung up."""
        if not self.alive:
            raise NotPresentError(f"{self.who} has hung up: ask again in a moment.")
        self.send(message)
        self._pending[message["id"]] = on_reply

    def forget(self, number: int) -> None:
        """Stop waiting for a request's reply. Its `on_reply` is not called; `take` gets the reply."""
        self._pending.pop(number, None)

    def give_up(self) -> None:
        """Fail all pending requests. `take` gets replies that arrive later."""
        pending, self._pending = self._pending, {}
        for on_reply in pending.values():
            on_reply(None)

    async def ended(self) -> None:
        """Wait until the connection has ended."""
        await self._over.wait()

    async def close(self) -> None:
        """Close the connection. Pending requests fail."""
        self._writer.close()
        self.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. A part of a large message also counts as a sign of life."""
        self.heard_at_s = self._loop.time()
        self._is_receiving = True
        try:
            for body in self._frames.completed_by(data):
                self._dispatch(decode_message(body))
        except InvalidArgumentError as error:
            _log.warning("%s is not understood, its connection is closed: %s", self.who, error)
            self._writer.close()
        finally:
            self._is_receiving = False
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending requests, because the connection is lost."""
        self.is_over = True
        self._over.set()
        self.give_up()

    def _dispatch(self, message: Message) -> None:
        number = None if "type" in message else message.get("id")  # requests have a type, and the other end's numbers
        on_reply = self._pending.pop(number, None) if isinstance(number, int) else None
        try:
            if on_reply is None:
                self._take(message)
            else:
                on_reply(message)
        except InvalidArgumentError:
            raise
        except Exception:  # noqa: BLE001 - a defect in one request must not close the connection of all
            _log.exception("A reply of %s could not be taken", self.who)
