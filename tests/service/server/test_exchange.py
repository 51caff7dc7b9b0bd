"""What is said over a connection that begins as streams and goes on as frames: all of it arrives, from the first on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from stateline.query.wire import LENGTH, frame
from stateline.server.wire.exchange import Exchange, Message
from stateline.server.wire.streams import streams
from stateline_store import NotPresentError
from support.run.patience import HANGING_S

Scene = Callable[[Exchange, socket.socket, list[Message]], Awaitable[None]]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loops(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    found: Callable[[], asyncio.AbstractEventLoop] = request.param
    return found


def play(loops: Callable[[], asyncio.AbstractEventLoop], before: bytes, scene: Scene, *, ends: bool = False) -> None:
    """An exchange that has not begun, the other end of its connection, and what it takes. The other end has said
    `before`, and has hung up where it `ends`."""

    async def played() -> None:
        near, far = socket.socketpair()
        loop, taken = asyncio.get_running_loop(), list[Message]()
        with far:
            arrivals, writer = await streams(lambda made: loop.create_unix_connection(made, sock=near))
            exchange = Exchange(arrivals, writer, "The other end", taken.append)
            far.sendall(before)
            if ends:
                far.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.05)  # it has arrived, and nobody has read it
            far.setblocking(False)
            async with asyncio.timeout(HANGING_S):
                await scene(exchange, far, taken)
            await exchange.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(played())


async def until_taken(taken: list[Message], count: int) -> None:
    while len(taken) < count:
        await asyncio.sleep(0.001)


def test_what_came_before_it_begins_is_taken_first(loops: Callable[[], asyncio.AbstractEventLoop]) -> None:
    whole = b"".join(frame({"type": "said", "n": n}) for n in range(4))

    async def scene(exchange: Exchange, far: socket.socket, taken: list[Message]) -> None:
        await exchange.begin()
        far.sendall(whole[60:])
        await until_taken(taken, 4)
        assert [each["n"] for each in taken] == [0, 1, 2, 3]
        assert exchange.alive

    play(loops, whole[:60], scene)


def test_one_that_had_hung_up_before_it_begins_is_heard_to_the_end(
    loops: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scene(exchange: Exchange, far: socket.socket, taken: list[Message]) -> None:
        await exchange.begin()
        await exchange.ended()
        assert [each["n"] for each in taken] == [7]
        assert not exchange.alive
        with pytest.raises(NotPresentError):
            await exchange.request({"id": exchange.number()}, 1.0)

    play(loops, frame({"type": "said", "n": 7}), scene, ends=True)


def test_who_waits_is_told_when_the_other_end_hangs_up(loops: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scene(exchange: Exchange, far: socket.socket, taken: list[Message]) -> None:
        await exchange.begin()
        asking = asyncio.create_task(exchange.request({"id": exchange.number()}, HANGING_S))
        await asyncio.get_running_loop().sock_recv(far, 100)
        far.shutdown(socket.SHUT_RDWR)
        with pytest.raises(NotPresentError, match="hung up"):
            await asking
        await exchange.ended()

    play(loops, b"", scene)


@pytest.mark.parametrize("broken", [LENGTH.pack(0), LENGTH.pack(2) + b"[]", LENGTH.pack(3) + b"abc"])
def test_what_is_no_message_ends_the_connection_and_what_came_before_it_is_taken(
    loops: Callable[[], asyncio.AbstractEventLoop], broken: bytes
) -> None:
    async def scene(exchange: Exchange, far: socket.socket, taken: list[Message]) -> None:
        await exchange.begin()
        far.sendall(frame({"type": "said", "n": 1}) + broken + frame({"type": "said", "n": 2}))
        await exchange.ended()
        assert [each["n"] for each in taken] == [1]

    play(loops, b"", scene)


def test_all_replies_to_what_arrives_together_leave_together(loops: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scene(exchange: Exchange, far: socket.socket, taken: list[Message]) -> None:
        def reply(message: Message) -> None:
            exchange.send({"id": message["id"]})

        exchange._take = reply
        await exchange.begin()
        far.sendall(b"".join(frame({"type": "asked", "id": n}) for n in range(5)))
        received = await asyncio.get_running_loop().sock_recv(far, 10_000)
        assert received == b"".join(frame({"id": n}) for n in range(5))

    play(loops, b"", scene)
