"""What a worker keeps when something fails: commits, the group, a topic, a store, a record. On the embedded log."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.worker.faults import (
    CHANGELOG,
    EXACTLY_ONCE,
    GUARANTEES,
    IN,
    NEVER_MS,
    Place,
    both,
    counting,
    entries,
    fail_commit_of_stores,
    rename,
    table_only,
    two_topics,
    work_off_and_make_anew,
)
from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.log.interface import Consumer, TopicInfo
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord, Output
from stateline.worker.commit.commit_order import Committer
from stateline.worker.group.group_member import WorkerMembership
from stateline.worker.loop.task_executor import TaskExecutor
from stateline.worker.restore import changelog_follower, store_restore
from stateline.worker.restore.store_restore import StoreRestore
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import (
    DamagedDataError,
    FencedError,
    InDoubtError,
    IsolationLevel,
    LockedError,
    LogUnavailableError,
    RecordError,
    StateDirectory,
    StatelineError,
    TopicPartition,
    TopologyError,
    TransactionalStore,
)
from support.processes.running_worker import create, eventually, read_all, running
from support.run.patience import HANGING_S


class TestCommitsThatFail:
    @pytest.mark.parametrize(
        ("applied", "error"),
        [
            (True, InDoubtError("no answer")),
            (False, InDoubtError("no answer")),
            (False, FencedError("a newer producer")),
        ],
        ids=["applied", "lost", "fenced"],
    )
    def test_a_transaction_of_unknown_outcome_is_settled_and_every_record_counts_once(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, applied: bool, error: StatelineError
    ) -> None:
        commit, numbers = EmbeddedProducer.commit_transaction, itertools.count(1)

        def fail_second(producer: EmbeddedProducer) -> None:
            failing = next(numbers) == 2
            if not failing or applied:
                commit(producer)
            if failing:
                raise error

        monkeypatch.setattr(EmbeddedProducer, "commit_transaction", fail_second)
        app = counting()
        config = place.config(app, **EXACTLY_ONCE)
        place.send(entries("abc", 10))
        place.work_off(app, config, 29)
        place.send(entries("abc", 10))
        found = place.work_off(app, config, 59)
        assert next(numbers) > 2
        assert found.rows("counts", 1) == {b"a": b"20", b"b": b"20", b"c": b"20"}
        assert dict(place.changelog()) == {b"a": b"20", b"b": b"20", b"c": b"20"}

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_a_failure_late_in_a_polled_batch_commits_nothing_of_it_on_the_way_out(
        self, place: Place, guarantee: str
    ) -> None:
        seen: list[int] = []

        def fail_late(record: InputRecord) -> None:
            seen.append(record.offset)
            if record.offset == 40:  # in a later slice: the first one has 16 records
                raise RuntimeError("no such luck")

        app = counting(fail_late)
        config = place.config(app, processing__guarantee=guarantee, commit__interval__ms=NEVER_MS)
        place.send(entries("abc", 20))
        with pytest.raises(RecordError, match="in-0 offset 40"):
            place.worker(app, config).reach(lambda: False)
        assert seen == list(range(41))
        assert place.admin.committed("app", [IN]) == {}
        assert place.stores(app, config).rows("counts", 1) == {}
        assert place.changelog() == []

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_a_worker_that_is_stopped_as_a_slice_fails_commits_nothing_of_it(
        self, place: Place, guarantee: str
    ) -> None:
        seen: list[int] = []

        def fail_once(record: InputRecord) -> None:
            seen.append(record.offset)
            if seen.count(20) == 1 and record.offset == 20:  # in a later slice: the first one has 16 records
                worker.stop()
                raise LogUnavailableError("what the function needs is away")

        app = counting(fail_once)
        config = place.config(app, processing__guarantee=guarantee, commit__interval__ms=NEVER_MS)
        place.send(entries("a", 30))
        worker = place.worker(app, config)
        worker.reach(lambda: False)
        assert seen == list(range(21))
        assert place.changelog() == []
        place.commit_once(app, config, 30)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"30"}

    def test_a_store_without_a_changelog_counts_at_least_what_the_input_says(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = counting(logged=False)
        config = place.config(app)
        place.send(entries("a", 10))
        failed = fail_commit_of_stores(monkeypatch, 1)
        place.worker(app, config).reach(lambda: bool(failed))
        place.send(entries("a"))
        found = place.work_off(app, config, 10)
        assert int(found.rows("counts", 1)[b"a"]) >= 11

    def test_a_dead_letter_of_a_table_is_written_once_under_exactly_once(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(place.log, {"dead": 1})
        place.send([(b"a", b"1", 1), (b"b", b"no json", 2), (b"c", b"3", 3)])
        failed = fail_commit_of_stores(monkeypatch, 1)
        dead = {
            "deserialization__exception__handler": "dead-letter",
            "errors__dead__letter__queue__topic__name": "dead",
        }
        app = table_only()
        found = place.work_off(app, place.config(app, **EXACTLY_ONCE, **dead), 2, "newest")
        assert failed
        assert found.rows("newest", 1) == {b"a": b"1", b"c": b"3"}
        assert [record.key for record in read_all(place.log, "dead", 1)] == [b"b"]

    def test_a_table_ahead_of_lost_group_offsets_never_goes_back(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, delivered: list[Record]
    ) -> None:
        app = counting(table=True)
        config = place.config(app, commit__interval__ms=1)
        place.send(entries("a", 300))
        place.work_off(app, config, 299)
        place.forget_group_offsets()
        failed = fail_commit_of_stores(monkeypatch, 2)
        found, looks = place.stores(app, config), list[tuple[dict[bytes, bytes], int]]()

        def look() -> bool:
            looks.append((found.rows("newest", 1), found.offset("newest", "in", 0)))
            return bool(failed) and worker.read_up_to(IN) == 300

        worker = place.worker(app, config)
        worker.reach(look)
        looks.append((found.rows("newest", 1), found.offset("newest", "in", 0)))
        assert [each for each in looks if each != ({b"a": b"299"}, 299)] == []
        assert [record for record in delivered if record.topic == "in"] == [], "the table had everything"
        place.send([(b"a", b"newer", 300)])
        assert place.work_off(app, config, 300, "newest").rows("newest", 1) == {b"a": b"newer"}


class TestTheGroup:
    def test_a_worker_that_lost_its_partitions_without_knowing_writes_nothing_to_the_changelog(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        stalled, go_on = threading.Event(), threading.Event()

        def stall(record: InputRecord) -> None:
            if record.offset == 11 and threading.current_thread().name == "loser":
                stalled.set()
                assert go_on.wait(HANGING_S)

        app = counting(stall)
        with closing(Place(tmp_path, session_timeout_ms=1_000)) as place:
            mine, other = place.config(app, "mine"), place.config(app, "other")
            found, taken_over = place.stores(app, mine), place.stores(app, other)
            place.send(entries("a", 10))
            with running(app, mine, place.log, "loser"):
                eventually(lambda: found.offset("counts", "in", 0) == 9, "the loser commits")
                place.send(entries("a", 2))
                assert stalled.wait(HANGING_S)
                with running(app, other, place.log, "successor"):
                    place.send(entries("a", 88))
                    eventually(lambda: taken_over.offset("counts", "in", 0) == 99, "the successor takes over")
                    go_on.set()
                    eventually(lambda: "Starting over" in caplog.text, "the loser notices")
            values = [int(value or b"0") for _, value in place.changelog()]
            assert values == sorted(values)
            assert values[-1] >= 100

    @pytest.mark.parametrize("stops", [False, True], ids=["goes-on", "stops"])
    def test_a_commit_that_fails_while_partitions_are_revoked_does_not_let_the_rest_through(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool
    ) -> None:
        flush, revoked = EmbeddedProducer.flush, WorkerMembership.revoked
        revoking, failed = threading.local(), list[str]()

        def flush_not_while_revoking(producer: EmbeddedProducer) -> dict[TopicPartition, int]:
            if getattr(revoking, "now", False) and not failed:
                failed.append("flush")
                raise LogUnavailableError("the log is busy")
            return flush(producer)

        def revoked_when_a_commit_is_due(member: WorkerMembership, partitions: list[TopicPartition]) -> None:
            revoking.now = threading.current_thread().name == "first"
            revoked(member, partitions)
            if revoking.now and failed == ["flush"]:
                member._commits._last_commit_s = 0.0
                if stops:  # before it starts over
                    first.stop()
                failed.append("seen")
            revoking.now = False

        monkeypatch.setattr(EmbeddedProducer, "flush", flush_not_while_revoking)
        monkeypatch.setattr(WorkerMembership, "revoked", revoked_when_a_commit_is_due)
        calls: list[int] = []
        app = counting(lambda record: calls.append(record.offset))
        with closing(Place(tmp_path, partitions=2)) as place:
            place.send_each_partition(2, 20)
            config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
            with running(app, config, place.log, "first") as first:
                eventually(lambda: len(calls) == 40, "everything is staged")
                with running(app, config, place.log, "second"):
                    eventually(lambda: len(failed) == 2, "the commit fails")
            found = place.stores(app, config)
            last = place.config(app, **EXACTLY_ONCE)
            place.worker(app, last).reach(lambda: {found.offset("counts", "in", p) for p in (0, 1)} == {19})
            assert found.rows("counts", 2) == {b"p0": b"20", b"p1": b"20"}

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_what_is_revoked_is_committed_first(self, tmp_path: Path, guarantee: str) -> None:
        calls: list[tuple[int, int]] = []
        app = counting(lambda record: calls.append((record.partition, record.offset)))
        with closing(Place(tmp_path, partitions=2)) as place:
            place.send_each_partition(2, 20)
            config = place.config(app, commit__interval__ms=NEVER_MS, processing__guarantee=guarantee)
            sources = [TopicPartition("in", p) for p in (0, 1)]
            with running(app, config, place.log, "first"):
                eventually(lambda: len(calls) == 40, "everything is staged")
                assert place.admin.committed("app", sources) == {}
                with running(app, config, place.log, "second"):
                    eventually(lambda: 20 in place.admin.committed("app", sources).values(), "what moves is committed")
            found = place.stores(app, config)
            assert found.rows("counts", 2) == {b"p0": b"20", b"p1": b"20"}
            assert len(calls) == 40

    def test_two_workers_that_take_longer_than_the_session_for_what_they_polled_do_not_evict_each_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateline.worker.loop.task_executor._POLL_PATIENCE_S", 0.1)
        calls: Counter[tuple[int, int]] = Counter()

        def take_long(record: InputRecord) -> None:
            time.sleep(0.005)
            calls[record.partition, record.offset] += 1

        app = counting(take_long)
        with closing(Place(tmp_path, partitions=2, session_timeout_ms=2_000)) as place:
            place.send_each_partition(2, 400)
            config = place.config(app, **EXACTLY_ONCE)
            found = place.stores(app, config)
            with running(app, config, place.log, "one"), running(app, config, place.log, "two"):
                eventually(lambda: {found.offset("counts", "in", p) for p in (0, 1)} == {399}, "both come to the end")
            assert found.rows("counts", 2) == {b"p0": b"400", b"p1": b"400"}
            assert len(calls) == 800

    def test_what_was_polled_and_takes_too_long_is_read_again_in_order_and_counted_once(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateline.worker.loop.task_executor._POLL_PATIENCE_S", 0.01)
        polled: list[int] = []
        poll = WorkerMembership.poll

        def counted_poll(member: WorkerMembership, max_records: int, wait_s: float) -> list[Record]:
            records = poll(member, max_records, wait_s)
            polled.append(len(records))
            return records

        monkeypatch.setattr(WorkerMembership, "poll", counted_poll)
        offsets: list[int] = []

        def take_long(record: InputRecord) -> None:
            time.sleep(0.002)
            offsets.append(record.offset)

        place.send(entries("a", 100))
        app = counting(take_long)
        place.work_off(app, place.config(app), 99)
        assert offsets == list(range(100))
        assert sum(polled) > 100

    def test_commits_are_made_in_the_middle_of_a_polled_batch_when_they_are_due(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        polls: list[int] = []
        commits: list[int] = []  # in which poll each was made
        poll, commit = WorkerMembership.poll, Committer.commit

        def counted_poll(member: WorkerMembership, max_records: int, wait_s: float) -> list[Record]:
            records = poll(member, max_records, wait_s)
            polls.append(len(records))
            return records

        def counted_commit(committer: Committer, *others: Any) -> None:
            commits.append(len(polls))
            commit(committer, *others)

        monkeypatch.setattr(WorkerMembership, "poll", counted_poll)
        monkeypatch.setattr(Committer, "commit", counted_commit)
        app = counting(lambda _: time.sleep(0.001))  # a slow processor: each slice takes longer than the interval
        place.send(entries("a", 100))
        place.work_off(app, place.config(app, commit__interval__ms=1), 99)
        (batch,) = [number for number, size in enumerate(polls, start=1) if size == 100]
        assert commits.count(batch) > 3

    def test_a_task_that_another_owner_holds_waits_and_goes_on_when_it_is_let_go(self, place: Place) -> None:
        app = counting()
        config = place.config(app)
        place.send(entries("a", 10))
        found = place.stores(app, config)
        held = StateDirectory(config.state_dir, "app").lock_task("0_0")
        turns = itertools.count()
        worker = place.worker(app, config)

        def let_go_in_the_end() -> bool:
            if worker.waiting() and next(turns) == 10:
                assert worker.read_up_to(IN) == 0
                held.release()
            return found.offset("counts", "in", 0) == 9

        worker.reach(let_go_in_the_end)
        assert next(turns) > 10
        assert found.rows("counts", 1) == {b"a": b"10"}

    def test_a_task_that_another_owner_never_lets_go_is_an_error(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateline.worker.group.task_manager._LOCK_PATIENCE_S", 0.0)
        app = counting()
        config = place.config(app)
        held = StateDirectory(config.state_dir, "app").lock_task("0_0")
        with pytest.raises(LockedError, match="0_0"):
            place.worker(app, config).reach(lambda: False)
        held.release()

    def test_a_worker_that_the_log_turns_away_at_its_start_starts_again_with_all_that_belongs_to_it(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has yet to create topics, and to compare what was counted before."""
        prepare, calls = TopicWatch.prepare, itertools.count(1)

        def away_at_first(watch: TopicWatch, counted: Mapping[str, TopicInfo]) -> None:
            if next(calls) == 1:
                raise LogUnavailableError("the log is away")
            prepare(watch, counted)

        monkeypatch.setattr(TopicWatch, "prepare", away_at_first)
        place.send(entries("aab"))
        app = counting()
        found = place.work_off(app, place.config(app), 2)
        assert found.rows("counts", 1) == {b"a": b"2", b"b": b"1"}
        assert next(calls) == 3

    def test_a_worker_that_is_stopped_before_it_has_joined_ends_in_order(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = counting()
        worker = place.worker(app, place.config(app))

        def away(watch: TopicWatch, counted: Mapping[str, TopicInfo]) -> None:
            worker.stop()
            raise LogUnavailableError("the log is away")

        monkeypatch.setattr(TopicWatch, "prepare", away)
        worker.run()
        assert not worker.tasks.all


class TestTopicsThatWereDeleted:
    def test_a_deleted_changelog_is_refused_and_the_store_keeps_its_data(self, place: Place) -> None:
        app = counting()
        config = place.config(app)
        place.send(entries("abc", 3))
        found = place.work_off(app, config, 8)
        place.admin.delete_topics([CHANGELOG])
        for _ in range(2):  # also when it was refused before
            with pytest.raises(TopologyError, match="app-counts-changelog is missing: the topic was deleted"):
                place.worker(app, config).reach(lambda: False)
        create(place.log, {CHANGELOG: 1})
        place.send([(b"z", b"1", 1)] * 20, CHANGELOG)
        with pytest.raises(TopologyError, match=r"counts.*changelog offset .* ends at 20"):
            place.worker(app, config).reach(lambda: False)
        assert found.rows("counts", 1) == {b"a": b"3", b"b": b"3", b"c": b"3"}
        assert found.offset("counts", "in", 0) == 8

    def test_a_new_store_of_an_old_application_does_not_claim_what_the_group_has_read(self, place: Place) -> None:
        place.send(entries("a", 10))
        place.work_off(counting(), place.config(counting()), 9)
        app = counting(also=True)
        config = place.config(app)
        found = place.stores(app, config)
        place.commit_once(app, config, 10)
        assert found.offset("again", "in", 0) == -1
        place.send(entries("a"))
        place.work_off(app, config, 10, "again")
        assert found.rows("again", 1) == {b"a": b"1"}
        assert found.rows("counts", 1) == {b"a": b"11"}

    @pytest.mark.parametrize("count", [5, 15], ids=["shorter", "longer"])
    def test_of_a_topic_created_anew_the_table_is_rebuilt_and_other_stores_forget_their_position(
        self, place: Place, count: int
    ) -> None:
        app = two_topics()
        config = place.config(app)
        found = place.stores(app, config)
        work_off_and_make_anew(place, app, config, found, count)
        place.worker(app, config).reach(lambda: both(found) == (count - 1, count - 1))
        assert found.rows("newest", 1) == {b"b": b"%d" % (count - 1)}
        assert found.rows("counts", 1) == {b"a": b"10", b"b": b"%d" % count}

    def test_the_position_in_the_old_topic_is_gone_before_the_first_record_of_a_longer_one(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = two_topics()
        config = place.config(app)
        found = place.stores(app, config)
        work_off_and_make_anew(place, app, config, found, 15)
        begin, at = Task.run, list[int | None]()

        def looked_at(task: Task, *arguments: Any) -> None:
            begin(task, *arguments)
            at.extend(s.position(IsolationLevel.READ_COMMITTED).get("other", 0) for _, s in task.stores.transactional)

        monkeypatch.setattr(Task, "run", looked_at)
        place.worker(app, config).reach(lambda: both(found) == (14, 14))
        assert set(at) == {None}

    def test_a_longer_topic_that_only_its_id_tells_is_read_from_its_start_by_the_running_worker(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateline.worker.tasks.topic_watch._LOOK_INTERVAL_S", 0.0)
        app = counting(table=True)
        config = place.config(app)
        found = place.stores(app, config)
        place.send(entries("a", 10))
        done: list[str] = []

        def step() -> bool:
            at = found.offset("counts", "in", 0)
            if at == 9 and not done:
                place.send(entries("a"))
                done.append("a look that saw ten records")
            elif at == 10 and len(done) == 1:
                rename(place, "in")
                place.send(entries("b"))
                done.append("another topic, and longer")
            return found.rows("counts", 1).get(b"b") is not None and at == 11

        place.worker(app, config).reach(step)
        counts = {key: int(value) for key, value in found.rows("counts", 1).items()}
        assert counts[b"a"] == 11 + 11
        assert counts[b"b"] >= 1
        assert found.rows("newest", 1) == {b"a": b"0", b"b": b"0"}

    def test_a_worker_that_is_stopped_as_it_finds_another_topic_commits_nothing_for_that(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look = TopicWatch.look

        def look_and_stop(watch: TopicWatch, *arguments: Any) -> None:
            rename(place, "in")
            worker.stop()
            look(watch, *arguments)

        monkeypatch.setattr(TopicWatch, "look", look_and_stop)
        monkeypatch.setattr("stateline.worker.tasks.topic_watch._LOOK_INTERVAL_S", 0.0)
        app = counting()
        place.send(entries("a", 10))
        worker = place.worker(app, place.config(app))
        worker.reach(lambda: False)
        assert place.admin.committed("app", [IN]) == {}

    def test_what_was_read_of_the_old_topic_is_not_committed_for_the_new_one_when_partitions_move(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        revoked, seen = WorkerMembership.revoked, list[tuple[str, dict[TopicPartition, int]]]()
        calls: list[int] = []
        app = counting(lambda record: calls.append(record.offset))
        with closing(Place(tmp_path, partitions=2)) as place:

            def looked_at(member: WorkerMembership, partitions: list[TopicPartition]) -> None:
                revoked(member, partitions)
                with closing(place.log.admin()) as admin:
                    committed = admin.committed("app", [TopicPartition("in", p) for p in (0, 1)])
                seen.append((str(member.failed), committed))

            monkeypatch.setattr(WorkerMembership, "revoked", looked_at)
            place.send_each_partition(2, 20)
            config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
            with running(app, config, place.log, "first"):
                eventually(lambda: len(calls) == 40, "everything is staged")
                rename(place, "in")
                with running(app, config, place.log, "second"):
                    eventually(lambda: bool(seen), "a partition moves")
        assert seen[0] == ("in: deleted and created again.", {})

    def test_a_position_that_the_changelog_remembers_of_a_topic_that_is_shorter_now_is_dropped(
        self, place: Place
    ) -> None:
        app = two_topics()
        config = place.config(app)
        work_off_and_make_anew(place, app, config, place.stores(app, config), 5)
        elsewhere = place.config(app, "elsewhere")
        found = place.stores(app, elsewhere)
        place.worker(app, elsewhere).reach(lambda: both(found) == (4, 4))
        assert found.rows("counts", 1) == {b"a": b"10", b"b": b"5"}


class TestRestoring:
    def test_a_store_reads_its_changelog_from_its_own_offset_and_not_from_the_beginning(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, delivered: list[Record]
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=1)
        place.send(entries([f"k{n}" for n in range(50)]))
        place.work_off(app, config, 49)
        before = len(place.changelog())
        place.send(entries("abcde"))
        failed = fail_commit_of_stores(monkeypatch, 1)
        found = place.work_off(app, config, 54)
        assert failed
        assert [record.offset for record in delivered] == list(range(before, before + 5))
        assert len(found.rows("counts", 1)) == 55

    def test_batches_that_were_restored_are_kept_when_the_partitions_go_elsewhere(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, delivered: list[Record]
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        for run in range(5):  # a commit of 20 changelog records each
            place.send(entries([f"{run}-{n}" for n in range(20)]))
            place.commit_once(app, config, 20 * (run + 1))
        shutil.rmtree(config.state_dir)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 10)
        monkeypatch.setattr(store_restore, "_BATCH_BYTES", 1)
        place.worker(app, config).reach(lambda: len(delivered) >= 50)
        assert [record.offset for record in delivered] == list(range(50))
        found = place.stores(app, config)
        assert len(found.rows("counts", 1)) == 40, "two commits are whole, the third is half"
        assert found.offset("counts", "in", 0) == -1, "no Position before the end"
        delivered.clear()
        found = place.work_off(app, config, 99)
        assert [record.offset for record in delivered] == list(range(40, 100))
        assert len(found.rows("counts", 1)) == 100

    def test_less_than_a_batch_leaves_nothing_when_the_partitions_go_elsewhere(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, delivered: list[Record]
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        for run in range(5):
            place.send(entries([f"{run}-{n}" for n in range(20)]))
            place.commit_once(app, config, 20 * (run + 1))
        shutil.rmtree(config.state_dir)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 10)
        place.worker(app, config).reach(lambda: len(delivered) >= 50)
        found = place.stores(app, config)
        assert (found.rows("counts", 1), found.offset("counts", "in", 0)) == ({}, -1)
        found = place.work_off(app, config, 99)
        assert len(found.rows("counts", 1)) == 100

    def test_a_restore_never_shows_half_a_commit(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
        keys = [f"k{n}" for n in range(10)]
        for end in (10, 20, 30):
            place.send(entries(keys))
            place.commit_once(app, config, end)
        shutil.rmtree(config.state_dir)
        commit, looks = StoreRestore.commit, list[tuple[int | None, dict[bytes, bytes]]]()

        def looked_at(each: StoreRestore) -> None:
            commit(each)
            assert isinstance(each.store, TransactionalStore)
            reader = each.store.reader(IsolationLevel.READ_COMMITTED)
            with reader.range(None, None) as rows:
                looks.append((reader.position.get("in", 0), dict(rows)))

        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 4)
        monkeypatch.setattr(store_restore, "_BATCH_BYTES", 1)
        monkeypatch.setattr(StoreRestore, "commit", looked_at)
        place.work_off(app, config, 29)
        wholes: list[dict[bytes, bytes]] = [{}] + [{key.encode(): b"%d" % times for key in keys} for times in (1, 2, 3)]
        seen = [wholes.index(rows) for _, rows in looks]
        assert seen == sorted(seen)
        assert set(seen) >= {1, 2, 3}
        assert [position for position, _ in looks] == [None] * (len(looks) - 1) + [29], "and the Position at the end"

    def test_a_damaged_store_is_rebuilt_alone_and_says_so_loudly(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = counting(table=True)
        config = place.config(app)
        place.send(entries("abc", 2))
        place.work_off(app, config, 5)
        whole, damaged = (place.task() / "rocksdb" / name for name in ("counts", "newest-v2"))
        before = (whole / "IDENTITY").read_text()
        (damaged / "CURRENT").write_text("garbage\n")
        found = place.work_off(app, config, 5, "newest")
        assert found.rows("newest", 1) == {b"a": b"1", b"b": b"1", b"c": b"1"}
        assert found.rows("counts", 1) == {b"a": b"2", b"b": b"2", b"c": b"2"}
        assert (whole / "IDENTITY").read_text() == before
        (loud,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert "newest" in loud
        assert "rebuilt" in loud

    def test_a_damaged_store_that_nothing_can_rebuild_is_refused(self, place: Place) -> None:
        app = counting(logged=False)
        config = place.config(app)
        place.send(entries("abc"))
        place.work_off(app, config, 2)
        current = place.task() / "rocksdb" / "counts" / "CURRENT"
        kept = current.read_text()
        current.write_text("garbage\n")
        with pytest.raises(DamagedDataError):
            place.worker(app, config).reach(lambda: False)
        current.write_text(kept)
        assert place.work_off(app, config, 2).rows("counts", 1) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def writing(size: int, *, forward: bool) -> App:
    """Writes a value of `size` bytes for key `big` and of one byte for every other, to a store or to a topic."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    out = app.topic("out", key=serdes.string, value=serdes.string)
    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))

    @app.process(source, stores=[kept], forwards=[out])
    def write(record: InputRecord, kept: StoreView, out: Output) -> None:
        kept.put("calls", str(int(kept.get("calls") or 0) + 1))
        value = "x" * (size if record.key == "big" else 1)
        if forward:
            out.forward(record.key, value)
        else:
            kept.put(record.key, value)

    return app


class TestRecordsThatFail:
    def test_large_records_stay_below_the_limit_of_staged_bytes(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit, peaks = 4_000_000, list[int]()
        between_slices = TaskExecutor.between_slices

        def sampled(executor: TaskExecutor, consumer: Consumer, rests_s: float = 0.0) -> None:
            peaks.append(executor._tasks.staged_bytes())
            between_slices(executor, consumer, rests_s)

        monkeypatch.setattr(TaskExecutor, "between_slices", sampled)
        value = json.dumps("x" * 900_000).encode()
        place.send([(b"k%d" % n, value, n) for n in range(30)])
        app = table_only()
        config = place.config(app, commit__interval__ms=NEVER_MS, statestore__uncommitted__max__bytes=limit)
        place.commit_once(app, config, 30)
        assert 2 * len(value) < max(peaks) <= limit

    @pytest.mark.parametrize("forward", [False, True], ids=["put", "forward"])
    def test_an_oversized_value_is_left_out_under_skip_with_all_that_its_record_wrote(
        self, place: Place, forward: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        create(place.log, {"out": 1})
        app = writing(2_000_000, forward=forward)
        place.send(entries(["a", "big", "b"]))
        config = place.config(app, processing__exception__handler="skip")
        found = place.work_off(app, config, 2, "kept")
        written = {r.key: r.value for r in read_all(place.log, "out", 1)} if forward else found.rows("kept", 1)
        assert {key: value for key, value in written.items() if key != b"calls"} == {b"a": b"x", b"b": b"x"}
        assert found.rows("kept", 1)[b"calls"] == b"2"
        assert "big" in caplog.text
        assert "2000003 bytes" in caplog.text

    @pytest.mark.parametrize("forward", [False, True], ids=["put", "forward"])
    def test_an_oversized_value_names_its_record_and_its_key_under_fail(self, place: Place, forward: bool) -> None:
        create(place.log, {"out": 1})
        app = writing(2_000_000, forward=forward)
        place.send(entries(["a", "big"]))
        with pytest.raises(RecordError, match=r"in-0 offset 1 key b'big'.*2000003 bytes"):
            place.worker(app, place.config(app)).reach(lambda: False)

    def test_a_record_that_only_the_log_refuses_names_its_key_and_is_not_the_callers_mistake(
        self, place: Place
    ) -> None:
        create(place.log, {"out": 1})
        app = writing(2_000_000, forward=False)
        place.send(entries(["big"]))
        larger: dict[str, Any] = {
            "producer__message__max__bytes": 3_000_000
        }  # so that the worker takes it, and the log does not
        with pytest.raises(RecordError, match="refuses a record of a changelog: Key b'big'"):
            place.worker(app, place.config(app, **larger)).reach(lambda: False)

    @pytest.mark.parametrize("policy", ["fail", "dead-letter"])
    def test_a_tables_record_without_a_key_is_dropped_and_counted_under_every_policy(
        self, place: Place, policy: str
    ) -> None:
        create(place.log, {"dead": 1})
        seen: list[Any] = []
        app = counting(lambda record: seen.append(record.key), table=True)
        place.send([(None, b"1", 1), (b"a", b"2", 2)])
        dead = {
            "deserialization__exception__handler": policy,
            "errors__dead__letter__queue__topic__name": "dead",
        }
        found = place.work_off(app, place.config(app, **dead), 1)
        assert seen == ["a"]
        assert read_all(place.log, "dead", 1) == []
        assert found.rows("newest", 1) == {b"a": b"2"}
