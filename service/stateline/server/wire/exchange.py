"""`Exchange`: frames over one connection of the event loop, as `stateline.query.wire` has them.

Requests carry a number that their replies bring back, in any order. Whatever else arrives is handed to who made this.
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
    """One end of a connection, from `begin` on. `take` gets what is no reply that somebody waits for; `who` is at the
    other end, in words. For the event loop's thread, and made in it."""

    def __init__(
        self, arrivals: Arrivals, writer: asyncio.StreamWriter, who: str, take: Callable[[Message], None]
    ) -> None:
        self._arrivals, self._writer = arrivals, writer
        self.who = who
        self._take = take
        self._numbers = itertools.count(1)
        self._pending: dict[int, Callable[[Message | None], None]] = {}
        self.heard_at_s = 0.0
        """When the other end said something last, whatever it was (the loop's time)."""
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []  # frames that go out together
        self._frames = Frames()
        self._is_receiving = False  # what is said meanwhile goes out in its end
        self._over = asyncio.Event()

    async def begin(self) -> None:
        """Take what arrives, first what has come already."""
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
        """Whether the other end is still there, as far as this one knows."""
        # A write that failed closes the transport before the end of what arrives is seen.
        return not self._over.is_set() and not self._writer.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of messages that wait because the other end reads nothing."""
        return self._writer.transport.get_write_buffer_size()

    def number(self) -> int:
        """The next request's, from 1 on."""
        return next(self._numbers)

    def send(self, message: Mapping[str, Any]) -> None:
        """Say something; that it arrives is not known. Raises `InvalidArgumentError` when it is too large.

        Messages of one turn of the loop go out together: under load a write costs more than a message.
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
        """The reply to this request, which has its number as `id`. Raises `NotPresentError` when the other end has hung
        up, does before it replies, or takes longer than `timeout_s`, for which `within` waits. A caller that has
        stopped waiting gets nothing. The reply is `take`'s then."""
        try:
            async with within(timeout_s):
                return await self._reply(message)
        except TimeoutError as error:
            raise NotPresentError(f"{self.who} did not answer within {timeout_s:g} s: ask again.") from error

    async def _reply(self, message: Message) -> Message:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Message | None) -> None:
            if future.done():  # who asked was cancelled just now
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
                self._take(future.result())  # it had come, and who asked was cancelled before it was taken
            raise
        finally:
            self._pending.pop(message["id"], None)

    def ask(self, message: Message, on_reply: Callable[[Message | None], None]) -> None:
        """Send a request without waiting in a task. `on_reply` is called once with the reply, or with None if the
        other end hangs up before. Raises `NotPresentError` if it already has."""
        if not self.alive:
            raise NotPresentError(f"{self.who} has hung up: ask again in a moment.")
        self.send(message)
        self._pending[message["id"]] = on_reply

    def forget(self, number: int) -> None:
        """Nobody waits any more for the reply to this request; its `on_reply` is not called."""
        self._pending.pop(number, None)

    def give_up(self) -> None:
        """Nobody waits any more for what was asked; replies that come nevertheless are handed to who made this."""
        pending, self._pending = self._pending, {}
        for on_reply in pending.values():
            on_reply(None)

    async def ended(self) -> None:
        """Comes back when the connection has ended."""
        await self._over.wait()

    async def close(self) -> None:
        """Hang up; pending requests fail."""
        self._writer.close()
        self.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        """The event loop's: the next piece, which is a sign of life even where it is a part of a large message."""
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
        """Called by the event loop when the connection is lost. Waiting requests fail."""
        self._over.set()
        self.give_up()

    def _dispatch(self, message: Message) -> None:
        number = None if "type" in message else message.get("id")  # requests have a type, and numbers of their own
        on_reply = self._pending.pop(number, None) if isinstance(number, int) else None
        try:
            if on_reply is None:
                self._take(message)
            else:
                on_reply(message)
        except InvalidArgumentError:
            raise
        except Exception:  # noqa: BLE001 - a defect, of one request; the event loop would hang up on all of them
            _log.exception("A reply of %s could not be taken", self.who)
