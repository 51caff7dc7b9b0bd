"""Connections of one socket go to the process that has fewest, and wait for none that does not take them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline.server.wire.accepting import ConnectionCounts, FairAcceptor
from support.run.patience import HANGING_S

BURST = 40


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=BURST) as one:
        yield one


@pytest.fixture
def counts(tmp_path: Path) -> list[ConnectionCounts]:
    """What two processes see of each other."""
    ConnectionCounts.create(tmp_path / "connections", 2)
    return [ConnectionCounts(tmp_path / "connections", number) for number in range(2)]


class Process:
    """What a process does with its connections here: it keeps them."""

    def __init__(self, listener: socket.socket, counts: ConnectionCounts, before: int) -> None:
        self.held: list[socket.socket] = []
        self.acceptor = FairAcceptor(listener.dup(), counts, self._connect, lambda: before + len(self.held))
        self.acceptor.publish()

    async def _connect(self, connection: socket.socket) -> None:
        await asyncio.sleep(0)
        self.held.append(connection)


def shares(listener: socket.socket, counts: list[ConnectionCounts], before: tuple[int, ...] = (0, 0)) -> list[int]:
    """How many connections of a burst each of these processes takes that has so many before."""

    async def take() -> list[int]:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(BURST)]
        processes = [Process(listener, *each) for each in zip(counts, before, strict=False)]
        async with asyncio.timeout(HANGING_S):
            while sum(len(process.held) for process in processes) < BURST:
                await asyncio.sleep(0.001)
        for process in processes:
            process.acceptor.close()
        for connection in (*clients, *(held for process in processes for held in process.held)):
            connection.close()
        return [len(process.held) for process in processes]

    return asyncio.run(take())


def test_a_burst_is_shared_evenly(listener: socket.socket, counts: list[ConnectionCounts]) -> None:
    assert shares(listener, counts) == [BURST // 2, BURST // 2]


def test_a_process_that_has_more_lets_the_other_catch_up(
    listener: socket.socket, counts: list[ConnectionCounts]
) -> None:
    assert shares(listener, counts, before=(10, 0)) == [BURST // 2 - 5, BURST // 2 + 5]


def test_a_process_that_takes_nothing_keeps_no_client_waiting(
    listener: socket.socket, counts: list[ConnectionCounts]
) -> None:
    assert shares(listener, counts[:1]) == [BURST]


def test_a_new_process_begins_without_what_its_predecessor_held(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    ConnectionCounts.create(path, 3)
    first, second, third = (ConnectionCounts(path, number) for number in range(3))
    second.publish(7)
    third.publish(9)
    assert first.least_of_others() == 7
    ConnectionCounts(path, 1)
    assert first.least_of_others() == 0
