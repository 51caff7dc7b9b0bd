"""What a restore commits on the way, which Position it claims, and what it makes of a log that lost something."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from contextlib import closing

import pytest

from service.worker.faults import (
    CHANGELOG,
    EXACTLY_ONCE,
    IN,
    NEVER_MS,
    Place,
    Watched,
    counting,
    entries,
    fail_commit_of_stores,
)
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_file import LogFile
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.restore import changelog_follower, store_restore
from stateline.worker.restore.store_restore import StoreRestore
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyValueStore,
    PoisonedError,
    TopicPartition,
    TopologyError,
    TransactionalStore,
)
from support.processes.running_worker import create, produce, read_all

Look = tuple[int | None, dict[bytes, bytes]]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    """What a committed read sees after each commit of a restore, which are many: Position in `in`, and rows."""
    commit, seen = StoreRestore.commit, list[Look]()

    def looked_at(each: StoreRestore) -> None:
        commit(each)
        assert isinstance(each.store, TransactionalStore)
        reader = each.store.reader(IsolationLevel.READ_COMMITTED)
        with reader.range(None, None) as rows:
            seen.append((reader.position.get("in", 0), {key: value[-1:] for key, value in rows}))

    monkeypatch.setattr(StoreRestore, "commit", looked_at)
    monkeypatch.setattr(store_restore, "_BATCH_BYTES", 1)
    return seen


def compact(place: Place, topic: str) -> None:
    """Leave the newest record of each key, as Kafka does."""
    newest = {record.key: record.offset for record in read_all(place.log, topic, 1)}
    for record in read_all(place.log, topic, 1):
        if newest[record.key] != record.offset:
            place.delete(topic, record.offset, record.offset)


def lost_behind_the_group(place: Place) -> tuple[App, Config]:
    """An application whose disk is lost, after a record that changed its store and five that did not."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

    @app.process(source, stores=[counts])
    def keep(record: InputRecord, counts: StoreView) -> None:
        if record.key != "nothing":
            counts.put(record.key, 1)

    config = place.config(app, commit__interval__ms=NEVER_MS)
    for end, keys in ((1, ["a"]), (6, ["nothing"] * 5)):
        place.send(entries(keys))
        place.commit_once(app, config, end)
    place.lose_disk(config)
    return app, config


class TestPositions:
    def test_of_a_compacted_changelog_none_is_claimed_before_its_end(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, looks: list[Look]
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
        for end, keys in ((2, "ab"), (4, "ab"), (5, "a")):
            place.send(entries(keys))
            place.commit_once(app, config, end)
        compact(place, CHANGELOG)
        place.lose_disk(config)
        looks.clear()
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 1)
        found = place.work_off(app, config, 4)
        assert [position for position, _ in looks[:-1]] == [None] * (len(looks) - 1)
        assert len(looks) > 1
        assert looks[-1] == (4, {b"a": b"3", b"b": b"2"})
        assert found.rows("counts", 1) == {b"a": b"3", b"b": b"2"}

    def test_of_a_compacted_source_a_table_claims_none_before_the_end(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, looks: list[Look]
    ) -> None:
        app = counting(table=True, logged=False)
        config = place.config(app, commit__interval__ms=NEVER_MS)
        place.send([(b"a", b"1", 1), (b"b", b"1", 2), (b"a", b"2", 3), (b"b", b"2", 4)])
        place.commit_once(app, config, 4)
        compact(place, "in")
        place.lose_disk(config)
        looks.clear()
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 1)
        place.work_off(app, config, 3, "newest")
        assert looks == [(None, {b"a": b"2"}), (3, {b"a": b"2", b"b": b"2"})]

    def test_a_table_whose_restore_was_interrupted_claims_what_it_has_and_takes_nothing_older(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workers, seen = list[Watched](), list[bytes]()
        app = counting(lambda record: seen.extend(worker.staged("newest", b"a") for worker in workers), table=True)
        config = place.config(app, commit__interval__ms=NEVER_MS)
        place.send(entries("a", 10))
        place.commit_once(app, config, 10)
        place.lose_disk(config)
        commit = StoreRestore.commit

        def killed_after(each: StoreRestore) -> None:
            commit(each)
            if each.store.name == "newest":
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(changelog_follower, "SLICE_RECORDS", 5)
            patch.setattr(store_restore, "_BATCH_BYTES", 1)
            patch.setattr(StoreRestore, "commit", killed_after)
            with pytest.raises(KeyboardInterrupt):
                place.worker(app, config).reach(lambda: False)
        at = place.stores(app, config).rows("newest", 1)[b"a"]
        assert b"0" < at < b"9"
        place.forget_group_offsets()
        workers.append(place.worker(app, config))
        workers[0].reach(lambda: len(seen) == 10)
        assert seen == [max(at, b"%d" % n) for n in range(10)]

    def test_after_a_lost_disk_a_store_claims_what_the_group_has_read_without_a_change_to_the_store(
        self, place: Place
    ) -> None:
        place.work_off(*lost_behind_the_group(place), 5)

    def test_a_store_that_cannot_commit_that_as_it_is_taken_over_says_why(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class TakenAgain(Watched):
            """Its partition is taken again before it hears what went wrong: Kafka's client raises that afterwards."""

            def turn(self) -> None:
                try:
                    super().turn()
                finally:
                    self.group.revoked([IN])

        def fail(store: TransactionalStore, _: object, *, announce: bool) -> None:
            raise DamagedDataError(f"{store.name} is on a broken disk")

        app, config = lost_behind_the_group(place)
        monkeypatch.setattr(StoreRestore, "commit", lambda _: monkeypatch.setattr(KeyValueStore, "commit", fail))
        with pytest.raises(DamagedDataError, match="counts is on a broken disk"):
            TakenAgain(app, config, place.log, instance="watched").reach(lambda: False)

    def test_a_new_store_whose_first_transaction_was_aborted_claims_nothing(self, place: Place) -> None:
        place.send(entries("a", 10))
        place.work_off(counting(), place.config(counting()), 9)
        create(place.log, {"app-again-changelog": 1})
        with closing(place.log.producer("somebody")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("app-again-changelog", b"a", b"1", timestamp_ms=1)
            producer.flush()
            producer.abort_transaction()
        assert place.admin.log_end(TopicPartition("app-again-changelog", 0)) > 0
        app = counting(also=True)
        config = place.config(app)
        place.commit_once(app, config, 10)
        assert place.stores(app, config).offset("again", "in", 0) == -1


class TestCommitsKeptWhole:
    def test_a_commit_larger_than_what_is_held_of_a_foreign_changelog_is_not_shown_in_part(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, looks: list[Look]
    ) -> None:
        monkeypatch.setattr(store_restore, "_NO_COMMITS_BYTES", 1)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 4)
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
        keys = [f"k{n}" for n in range(10)]
        place.send(entries(keys))
        place.commit_once(app, config, 10)
        place.send(entries(keys))
        with monkeypatch.context() as patch:
            fail_commit_of_stores(patch, 1)
            with pytest.raises(PoisonedError):
                place.commit_once(app, config, 20)  # as it leaves: the log has it, the store has not
        looks.clear()
        found = place.work_off(app, config, 19)
        assert {len(set(rows.values())) for _, rows in looks} == {1}
        assert set(found.rows("counts", 1).values()) == {b"2"}

    def test_a_changelog_without_positions_is_restored_to_its_last_record(self, place: Place) -> None:
        create(place.log, {CHANGELOG: 1})
        produce(place.log, CHANGELOG, [(b"a", b"5", 1), (b"b", b"7", 2), (b"c", b"9", 3)])
        place.send(entries("a"))
        app = counting()
        assert place.work_off(app, place.config(app), 0).rows("counts", 1) == {b"a": b"6", b"b": b"7", b"c": b"9"}

    def test_of_a_changelog_without_positions_no_more_is_held_than_the_limit(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, looks: list[Look]
    ) -> None:
        monkeypatch.setattr(store_restore, "_NO_COMMITS_BYTES", 1_000)
        monkeypatch.setattr(changelog_follower, "SLICE_RECORDS", 4)
        create(place.log, {CHANGELOG: 1})
        produce(place.log, CHANGELOG, [(b"%d" % n, b"1", 1) for n in range(20)])
        place.send(entries("a"))
        app = counting()
        place.work_off(app, place.config(app), 0)
        assert [len(rows) for _, rows in looks] == [8, 12, 16, 20]

    def test_a_restore_waits_for_the_transaction_that_another_worker_left_open(self, place: Place) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
        place.send(entries("ab"))
        place.commit_once(app, config, 2)
        place.lose_disk(config)
        turns, worker = itertools.count(), place.worker(app, config)
        with closing(place.log.producer("another")) as another:
            another.init_transactions()
            another.begin_transaction()
            another.produce(CHANGELOG, b"c", b"7", timestamp_ms=1)
            another.flush()

            def commits_in_the_end() -> bool:
                if next(turns) == 20:
                    assert worker.read_up_to(IN) == 0, "it does not run before it has everything"
                    another.commit_transaction()
                return worker.read_up_to(IN) == 2

            worker.reach(commits_in_the_end)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"1", b"b": b"1", b"c": b"7"}


class TestALogThatLostItsEnd:
    def test_a_store_ahead_of_a_log_that_went_back_as_a_whole_is_rebuilt_to_what_the_log_has(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = counting(table=True)
        config = place.config(app, commit__interval__ms=NEVER_MS, **EXACTLY_ONCE)
        place.send(entries("ab"))
        place.commit_once(app, config, 2)
        with (
            closing(sqlite3.connect(place.root / "log.db")) as file,
            closing(sqlite3.connect(place.root / "k")) as kept,
        ):
            file.backup(kept)
        place.send(entries("ab"))
        place.commit_once(app, config, 4)
        place.admin.close()
        for suffix in ("-wal", "-shm"):
            (place.root / f"log.db{suffix}").unlink(missing_ok=True)
        shutil.copy(place.root / "k", place.root / "log.db")
        place.log = EmbeddedLog(place.root / "log.db")
        place.send(entries("b"))
        place.commit_once(app, config, 3)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"1", b"b": b"2"}
        assert "Store counts of task 0_0 is at offset" in caplog.text

    def test_a_changelog_that_alone_lost_its_end_is_refused_and_the_store_keeps_its_data(self, place: Place) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        for end in (2, 4):
            place.send(entries("ab"))
            place.commit_once(app, config, end)
        place.delete(CHANGELOG, 2, 10)
        place.write("UPDATE partitions SET end_offset = 2 WHERE topic = ?", CHANGELOG)
        with pytest.raises(TopologyError, match=r"counts.*changelog offset 3.* ends at 2"):
            place.worker(app, config).reach(lambda: False)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"2", b"b": b"2"}

    def test_a_changelog_that_was_made_anew_is_refused_even_when_the_groups_offsets_are_gone_too(
        self, place: Place
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        place.send(entries("ab"))
        place.commit_once(app, config, 2)
        place.admin.delete_topics([CHANGELOG])
        place.forget_group_offsets()
        with pytest.raises(TopologyError, match=r"counts.*ends at 0"):
            place.worker(app, config).reach(lambda: False)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"1", b"b": b"1"}

    def test_input_that_was_deleted_before_it_was_read_is_told(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        place.send(entries("a", 3))
        place.commit_once(app, config, 3)
        place.send(entries("b", 10))
        place.delete(IN.topic, 0, 7)
        assert place.work_off(app, place.config(app), 12).rows("counts", 1) == {b"a": b"3", b"b": b"5"}
        assert "in-0 begins at offset 8, and 3 to 7" in caplog.text

    def test_a_group_ahead_of_its_topic_reads_it_again_and_says_so(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = counting()
        config = place.config(app, commit__interval__ms=NEVER_MS)
        place.send(entries("a", 3))
        place.commit_once(app, config, 3)
        place.write("UPDATE group_offsets SET next_offset = 50, fed = NULL")
        place.commit_once(app, config, 3)
        assert place.stores(app, config).rows("counts", 1) == {b"a": b"6"}
        assert "in-0 ends at offset 3, before the group's offset 50" in caplog.text

    @pytest.mark.parametrize(("sync", "mode"), [(False, 1), (True, 2)])
    def test_a_log_that_syncs_waits_for_the_disk_with_each_commit(self, place: Place, sync: bool, mode: int) -> None:
        with closing(LogFile(place.root / "log.db", 1_000, sync=sync)) as file:
            assert file.rows("PRAGMA synchronous") == [(mode,)]
