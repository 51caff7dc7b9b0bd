"""Whether a worker whose last starts have failed joins its group, or stays out of it so that others run its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stateline.deployment.nodes_topic import ensure_nodes_topic
from stateline.deployment.workers.entries import FaultEntry, WorkerEntries, WorkerEntry
from stateline.deployment.workers.failed_starts import FailedStarts
from stateline.deployment.workers.instance_file import instances_directory
from stateline.log import Log
from stateline.worker.group import crash_loop
from stateline.worker.group.crash_loop import CrashLoop, failed_alike
from stateline.worker.group.fitness import Fitness
from stateline_store.clock import now_ms

HOUR_MS = 3_600_000


class Worker:
    """One of a node, which has not joined yet."""

    def __init__(self, log: Log, root: Path, name: str, failed: int, stack: ExitStack) -> None:
        self.name, place = name, root / name
        self.entries = WorkerEntries(log, "app", name, WorkerEntry("t", directory=f"directory of {name}"))
        stack.callback(self.entries.close)
        for _ in range(failed):
            FailedStarts(place, "worker-0").joined()
        self.starts = FailedStarts(place, "worker-0")
        self.fitness = Fitness(place, "worker-0")
        self.has_left = 0
        self.loop = CrashLoop(self.starts, self.entries, name, self.fitness)
        self.entries.say()

    def _leave(self) -> None:
        self.has_left += 1

    def why_out(self, *, has_others: bool = True) -> str:
        return self.loop.why_out(self.entries.all(), self._leave, has_others=has_others)


class Workers:
    def __init__(self, log: Log, root: Path, stack: ExitStack) -> None:
        self._log, self._root, self._stack = log, root, stack

    def add(self, name: str, failed: int) -> Worker:
        return Worker(self._log, self._root, name, failed, self._stack)


@pytest.fixture(params=["embedded"])
def bootstrap(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'log.db'}"


@pytest.fixture
def workers(log: Log, tmp_path: Path) -> Iterator[Workers]:
    with ExitStack() as stack, closing(log.admin()) as admin:
        ensure_nodes_topic("app", admin)
        yield Workers(log, tmp_path, stack)


def test_after_two_failed_starts_it_leaves_and_rests_and_not_before(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failed in (0, 1):
        assert workers.add(f"well-{failed}", failed).why_out() == ""
    now_s = 1_000.0
    monkeypatch.setattr(crash_loop, "monotonic", lambda: now_s)
    for failed, rest_s in ((2, 30), (3, 60), (4, 120), (9, 600)):
        sick = workers.add(f"sick-{failed}", failed)
        assert f"Its last {failed} starts have failed, so it stays out of its group for {rest_s} s" in sick.why_out()
        assert sick.fitness.fault == sick.why_out()
        now_s += rest_s - 1
        assert sick.why_out()
        assert sick.has_left == 1
        now_s += 1
        assert sick.why_out() == sick.fitness.fault == ""
        monkeypatch.setattr(crash_loop, "now_ms", lambda: 2**50)  # the next one comes when that is long ago


def test_alone_it_joins_at_once(workers: Workers) -> None:
    sick = workers.add("sick", 5)
    assert sick.why_out(has_others=False) == ""
    assert not sick.has_left


def test_it_joins_at_once_when_its_file_is_deleted(workers: Workers) -> None:
    sick = workers.add("sick", 2)
    assert sick.why_out()
    sick.starts.path.unlink()
    assert sick.why_out() == ""


def test_of_two_that_fail_one_leaves_and_the_other_stays_and_then_both_stay(workers: Workers) -> None:
    one = workers.add("one", 2)
    assert one.why_out()
    two = workers.add("two", 2)
    assert two.why_out(has_others=False) == ""
    assert not two.has_left
    assert one.why_out() == "", "it hears that it is not its fault, and joins"
    again = workers.add("one", 3)
    assert again.why_out() == ""
    assert not again.has_left


def test_of_two_that_find_out_at_once_the_one_that_said_so_first_leaves(workers: Workers) -> None:
    one, two = workers.add("one", 2), workers.add("two", 2)
    one_at, two_at = (each.entries.say_fault(FaultEntry(stays=False)) for each in (one, two))
    assert failed_alike(one.entries, one.entries.all(), "one", before=one_at) == ""
    assert failed_alike(two.entries, two.entries.all(), "two", before=two_at) == "one"


def test_one_that_has_stayed_lately_stays_although_nobody_else_fails_any_more(workers: Workers) -> None:
    workers.add("one", 2).entries.say_fault(FaultEntry(stays=True))
    assert workers.add("one", 3).why_out() == ""


def test_of_two_workers_of_one_directory_the_others_failure_says_nothing(workers: Workers) -> None:
    one = workers.add("one", 2)
    one.entries.say_fault(FaultEntry(stays=False))
    twin = WorkerEntries(one.entries._log, "app", "one-1", WorkerEntry("t", directory="directory of one"))
    twin.say()
    twin.say_fault(FaultEntry(stays=False))
    twin.close()
    assert one.why_out()


def test_one_leaves_although_another_had_to_before_when_that_one_works_again(workers: Workers) -> None:
    one, two = workers.add("one", 2), workers.add("two", 2)
    assert one.why_out()
    one.entries.withdraw_fault()
    assert two.why_out()
    two.entries.withdraw_fault()
    one.entries.all()
    assert not one.entries.faults


def test_failures_of_an_hour_ago_say_nothing(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.add("two", 2).entries.say_fault(FaultEntry(stays=False))
    monkeypatch.setattr(crash_loop, "now_ms", lambda: now_ms() + HOUR_MS)
    assert workers.add("one", 2).why_out()


def test_a_start_has_failed_unless_all_tasks_have_run_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("stateline.deployment.workers.failed_starts.monotonic", lambda: now_s)
    first = FailedStarts(tmp_path, "worker-0")
    assert first.count == 0
    first.joined()
    first.runs()
    now_s += 19
    first.runs()
    second = FailedStarts(tmp_path, "worker-0")
    assert second.count == 1
    second.joined()
    assert not second.runs()
    now_s += 21
    assert second.runs()
    assert not second.is_pending
    assert FailedStarts(tmp_path, "worker-0").count == 0
    assert list(instances_directory(tmp_path).iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"failed":"2"}', b"\xff"])
def test_a_count_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    starts = FailedStarts(tmp_path, "worker-0")
    starts.joined()
    starts.path.write_bytes(content)
    assert FailedStarts(tmp_path, "worker-0").count == 0
