"""Waiters are woken by commits, and by nothing slower: the safety re-check is out of the way here."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from query_server import OwningWorker
from stateline.server.waiting import CommitSignal
from stateline.server.worker_client import Workers
from stateline_store import NotReadyError


@pytest.fixture(autouse=True)
def _no_safety_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.server.waiting.SAFETY_RECHECK_S", 3600)


def deadline_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def announced_before_the_wait() -> bool:
    signal = CommitSignal()
    commit = signal.next_commit()
    signal.announce()  # between the look at the state and the wait: not missed
    return await asyncio.wait_for(signal.wait(commit, deadline_s(3600)), 20)


def test_a_commit_between_look_and_wait_is_not_missed() -> None:
    assert asyncio.run(announced_before_the_wait()) is True


def test_a_deadline_that_has_passed_ends_the_wait() -> None:
    async def wait() -> bool:
        signal = CommitSignal()
        return await signal.wait(signal.next_commit(), deadline_s(0))

    assert asyncio.run(wait()) is False


def test_closing_ends_every_wait() -> None:
    async def wait() -> None:
        signal = CommitSignal()
        waiting = asyncio.create_task(signal.wait(signal.next_commit(), deadline_s(3600)))
        await asyncio.sleep(0)
        signal.close()
        await asyncio.wait_for(waiting, 20)

    with pytest.raises(NotReadyError):
        asyncio.run(wait())


async def is_woken(signal: CommitSignal, commit: asyncio.Event) -> bool:
    return await asyncio.wait_for(signal.wait(commit, deadline_s(3600)), 20)


def test_a_workers_commits_reach_those_who_wait_from_before_it_reads_the_subscription(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    held, connected = threading.Event(), threading.Event()

    def commit_when_connected() -> None:
        held.set()
        assert connected.wait(20)
        worker.commit_here()  # announced to nobody: the subscription is still unread

    async def wait() -> None:
        signal = CommitSignal()
        workers = Workers(worker.application, signal.announce)
        first = asyncio.create_task(asyncio.to_thread(worker.run, commit_when_connected))
        assert await asyncio.to_thread(held.wait, 20)
        await workers.refresh()
        commit = signal.next_commit()
        connected.set()
        await first
        assert await is_woken(signal, commit)
        for _ in range(3):
            commit = signal.next_commit()
            await asyncio.to_thread(worker.commit)
            assert await is_woken(signal, commit)
        await workers.close()

    asyncio.run(wait())
    worker.close()
