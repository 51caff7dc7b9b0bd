"""Waiters are woken by commits, and by nothing slower: the safety re-check is out of the way here."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from stateline.config.loading import load_config
from stateline.query.values import Outcome, PartitionAnswer, Terms
from stateline.server.serving import Serving
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import IsolationLevel, KeyQuery, NotReadyError, Position, PositionBound, Query, TopicPartition
from support.processes.query_server import TOPIC, OwningWorker, make_app
from support.run.patience import HANGING_S


@pytest.fixture(autouse=True)
def _no_safety_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.server.state.commit_signal.SAFETY_RECHECK_S", 3600)


def deadline_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def announced_before_the_wait() -> bool:
    signal = CommitSignal()
    commit = signal.next_commit()
    signal.announce()  # between the look at the state and the wait: not missed
    return await asyncio.wait_for(signal.wait(commit, deadline_s(3600)), HANGING_S)


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
        await asyncio.wait_for(waiting, HANGING_S)

    with pytest.raises(NotReadyError):
        asyncio.run(wait())


async def is_woken(signal: CommitSignal, commit: asyncio.Event) -> bool:
    return await asyncio.wait_for(signal.wait(commit, deadline_s(3600)), HANGING_S)


def test_a_workers_commits_reach_those_who_wait_from_before_it_reads_the_subscription(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    held, connected = threading.Event(), threading.Event()

    def commit_when_connected() -> None:
        held.set()
        assert connected.wait(HANGING_S)
        worker.commit_here()  # announced to nobody: the subscription is still unread

    async def wait() -> None:
        signal = CommitSignal()
        workers = Workers(worker.application, signal.announce, TimeLimits())
        first = asyncio.create_task(asyncio.to_thread(worker.run, commit_when_connected))
        assert await asyncio.to_thread(held.wait, HANGING_S)
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


def test_a_commit_that_comes_while_the_worker_answers_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = OwningWorker(tmp_path)
    at = worker.put("awaited", 1)
    wanted = TopicPartition(TOPIC, at.partition)
    bound = PositionBound(Position.of({wanted: worker.offset(at.partition) + 1}))
    terms = Terms("cache", IsolationLevel.READ_COMMITTED, bound)
    anything = Terms("cache", IsolationLevel.READ_COMMITTED)
    looks: list[Outcome] = []

    async def ask() -> dict[int, Outcome]:
        config = load_config("flights-app", overrides=[f"state.dir={tmp_path}"])
        serving = Serving(make_app().topology(), config, tmp_path)
        query_worker = serving.workers.query

        async def query_then_commit(
            task_id: str, terms: Terms, partition: int, query: Query[Any], wait_ms: int, declared: str
        ) -> Outcome:
            looks.append(await query_worker(task_id, terms, partition, query, 0, declared))
            if len(looks) == 1:
                await asyncio.to_thread(worker.put, "awaited", 2)
                await asyncio.to_thread(worker.commit)
                await query_worker(task_id, anything, partition, query, 0, declared)  # read after the announcement
            return looks[-1]

        monkeypatch.setattr(serving.workers, "query", query_then_commit)
        try:
            queries: dict[int, Query[Any]] = {at.partition: KeyQuery(b"awaited")}
            return await asyncio.wait_for(
                serving.routing.ask(serving.stores.get("cache"), terms, queries, deadline_s(3600)), HANGING_S
            )
        finally:
            await serving.close()

    (outcome,) = asyncio.run(ask()).values()
    assert len(looks) == 2
    assert isinstance(outcome, PartitionAnswer)
    worker.close()


def test_other_tasks_of_a_worker_wake_those_who_wait(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    anything = Terms("cache", IsolationLevel.READ_COMMITTED)
    file = worker.application / "instances" / f"{worker.name}.json"

    async def is_woken_by(tasks: dict[str, str]) -> bool:
        signal = CommitSignal()
        workers = Workers(worker.application, signal.announce, TimeLimits())
        await workers.refresh()
        # Read after the answer to the subscription, which is an announcement too.
        await workers.query("0_0", anything, 0, KeyQuery(b"any"), 0, "anything")
        change = signal.next_commit()
        await workers.refresh()
        assert not change.is_set()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tasks": tasks}))
        await workers.refresh()
        await workers.close()
        return change.is_set()

    assert asyncio.run(is_woken_by({"0_1": "running"}))
    worker.close()
