"""Waiters are woken by commits, and by nothing slower: the safety re-check is out of the way here."""

from __future__ import annotations

import asyncio
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


def test_a_workers_commit_reaches_those_who_wait(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)

    async def wait() -> bool:
        signal = CommitSignal()
        workers = Workers(worker.application, signal.announce)
        await workers.refresh()
        commit = signal.next_commit()
        await asyncio.to_thread(worker.commit)
        woken = await asyncio.wait_for(signal.wait(commit, deadline_s(3600)), 20)
        await workers.close()
        return woken

    assert asyncio.run(wait()) is True
    worker.close()
