"""Changes of a table that wait: those of plain Python leave, after restarts, lost disks and kills."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, SessionWindows, serdes, until_time_limit, until_window_closes
from stateline.log import Record
from stateline.processing.changelog import (
    BUFFER_VERSION,
    end_of_last_commit,
    own_headers,
    owner_epoch,
    owner_headers,
    position_headers,
    with_own,
)
from stateline.serde.buffered_change import BufferedChange, read_buffered
from stateline.testing import TestDriver
from stateline_store import DamagedDataError, InvalidArgumentError, Position, RecordError
from support.apps import suppress_app

WAIT_MS = 100
Left = tuple[bytes | None, bytes | None, int]


class Oracle:
    """What waits: key → time of the first change, and value and timestamp of the last one."""

    def __init__(self, max_records: int | None = None) -> None:
        self.waiting: dict[str, tuple[int, str | None, int]] = {}
        self.left: list[Left] = []
        self.now_ms, self.max_records = -1, max_records

    def process(self, records: list[Given]) -> None:
        for key, value, at in records:
            self.waiting[key] = self.waiting.get(key, (at,))[0], value, at
            self.now_ms = max(self.now_ms, at)
            while self.waiting:
                first, (first_ms, *last) = min(self.waiting.items(), key=lambda one: (one[1][0], one[0].encode()))
                full = self.max_records is not None and len(self.waiting) > self.max_records
                if first_ms > self.now_ms - WAIT_MS and not full:
                    break
                del self.waiting[first]
                data, at_ms = last
                self.left.append((first.encode(), None if data is None else str(data).encode(), int(str(at_ms))))


def built(**options: Any) -> App:
    app = App("app")
    table = app.ktable(app.table("prices", key=serdes.string, value=serdes.string, store="newest"))
    wait = until_time_limit(timedelta(milliseconds=WAIT_MS))
    table.suppress(wait, name="waiting", **options).to_stream().to("calm")
    return app


def prices(count: int, seed: int, *, keys: int = 12, late: bool = True) -> list[Given]:
    chance, at = random.Random(seed), 10_000 + seed * 5_000
    made: list[Given] = []
    for n in range(count):
        at += chance.randrange(20)
        value = None if chance.random() < 0.2 else f"v{n}"
        made.append((f"k{chance.randrange(keys)}", value, at - chance.randrange(150) * (late and n % 4 == 0)))
    return made


def one_by_one(_: object, records: list[Any], at: int) -> tuple[list[Any], int]:
    return records[at : at + 1], 1


def left(scene: Scene) -> list[Left]:
    return [(each.key, each.value, each.timestamp_ms) for each in scene.written("calm")]


@pytest.mark.parametrize("max_records", [None, 5])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_changes_leave_after_the_time_limit_or_when_too_many_wait_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str, max_records: int | None
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace.SlicePace.cut", one_by_one)
    monkeypatch.setattr("stateline.processing.operators.leaving_rows._MOST_BYTES", 450)  # it looks often
    scene = Scene(built(max_records=max_records), tmp_path, 1, {"processing.guarantee": guarantee})
    oracle = Oracle(max_records)
    for seed in range(2):
        part = prices(200, seed)
        scene.send("prices", part)
        oracle.process(part)
        scene.work_off()
        assert left(scene) == oracle.left
    assert len(oracle.left) > 50
    assert oracle.waiting


@pytest.mark.parametrize("persistent", [True, False], ids=["disk-lost", "memory"])
def test_what_waits_is_restored_from_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace.SlicePace.cut", one_by_one)
    scene = Scene(built(persistent=persistent), tmp_path, 1, {"processing.guarantee": "exactly_once_v2"})
    oracle = Oracle()
    for seed in range(3):
        part = prices(100, seed, late=False)
        scene.send("prices", part)
        oracle.process(part)
        scene.work_off()
        assert left(scene) == oracle.left
        shutil.rmtree(scene.config.state_dir)
    written = [each for each in scene.written("app-waiting-store-changelog") if each.value is not None]
    assert {own_headers(each.headers) for each in written} == {BUFFER_VERSION}
    assert {each.headers[-1] for each in written} == {*BUFFER_VERSION}, "the last `v` is the one that Java reads"


def test_a_worker_that_is_killed_under_exactly_once_lets_each_change_leave_once(tmp_path: Path) -> None:
    scene = Scene(
        suppress_app.build(),
        tmp_path,
        1,
        {"processing.guarantee": "exactly_once_v2", "group.instance.id": "the-worker"},
    )
    oracle = Oracle()
    for n, kill_at in enumerate(["commit:changes-flushed#2", "commit:log-committed", "commit:task-committed#2", None]):
        part: list[Given] = [(f"k{n}-{i}", f"v{i}", 10_000 * n + 7 * i) for i in range(300)]  # each key once
        scene.send("prices", part)
        oracle.process(part)
        if kill_at is None:
            scene.work_off()
        else:
            scene.run_until_killed(suppress_app, kill_at)
    assert left(scene) == oracle.left
    assert len(oracle.left) > 1_000


def test_a_dead_letter_of_a_change_that_waited_is_its_input_record() -> None:
    letters = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "dead"}
    app = App("app", config=letters)
    texts = app.stream("texts", key=serdes.string, value=serdes.string).map_values(lambda key, value: value.upper())

    def refused(key: str, value: str) -> None:
        raise ValueError(value)

    wait = until_time_limit(timedelta(milliseconds=WAIT_MS))
    texts.to_table("upper").suppress(wait, name="waiting").to_stream().peek(refused)
    with TestDriver(app) as driver:
        driver.pipe("texts", "k", "first", timestamp_ms=0)
        driver.restart()
        driver.pipe("texts", "j", "second", timestamp_ms=WAIT_MS)
        (letter,) = driver.dead_letters()
    assert (letter.key, letter.value, letter.offset, letter.message) == (b"k", b"first", 0, "FIRST")


KEYS = st.sampled_from(["a", "b", "c"])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from(["x", "y"]), st.integers(0, 400)), max_size=25)


@settings(deadline=None, max_examples=15)
@given(RECORDS, st.none() | st.integers(0, 2))
def test_changes_of_any_times_leave_as_in_plain_python(records: list[Given], max_records: int | None) -> None:
    oracle = Oracle(max_records)
    oracle.process(records)
    with TestDriver(built(max_records=max_records)) as driver:
        for key, value, at in records:
            driver.pipe("prices", key, value, timestamp_ms=at)
        found = [(each.key, each.value, each.timestamp_ms) for each in driver.read("calm")]
        waiting = {row.key for row in driver.store("waiting-store").all()}
    assert found == [(key.decode(), value and value.decode(), at) for key, value, at in oracle.left if key]
    assert waiting == oracle.waiting.keys()


def test_a_full_buffer_ends_the_worker_if_it_must_not_emit_early() -> None:
    wanted = r"suppress is full at prices-0 offset 2.*2 keys.*max_records=1.*when_full=\"emit\""
    with TestDriver(built(max_records=1, when_full="stop")) as driver:
        driver.pipe("prices", "a", "x", timestamp_ms=1)
        driver.pipe("prices", "a", "y", timestamp_ms=2)
        with pytest.raises(RecordError, match=wanted):
            driver.pipe("prices", "b", "x", timestamp_ms=3)


NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.none() | st.binary(max_size=4)
HEADERS = st.lists(st.tuples(st.text(max_size=3), VALUES), max_size=3).map(tuple)


@given(st.builds(BufferedChange, NUMBERS, NUMBERS, st.text(max_size=9), st.just(3), HEADERS, *[VALUES] * 3, NUMBERS))
def test_a_row_is_read_as_it_was_written_and_no_part_of_it_is(change: BufferedChange) -> None:
    packed = change.packed()
    assert read_buffered(packed) == change
    for end in (0, len(packed) // 2, len(packed) - 1):
        with pytest.raises(DamagedDataError, match="no change or row that is held back"):
            read_buffered(packed[:end])


def test_the_version_of_a_waiting_change_is_behind_all_other_headers() -> None:
    for added in ((), owner_headers(7), (*position_headers(Position()), *owner_headers(7))):
        headers = with_own(BUFFER_VERSION, added)
        assert headers == (*added, *BUFFER_VERSION)
        for each in (headers, list(headers)):  # Kafka's client gives a list
            assert tuple(own_headers(each)) == BUFFER_VERSION
            record = Record("changelog", 0, 0, 1, b"k", b"v", each)
            assert owner_epoch([record]) == (7 if owner_headers(7)[0] in added else 0)
            assert end_of_last_commit([record]) == int(position_headers(Position())[1] in added)
    assert own_headers((("a", b"1"), *BUFFER_VERSION)) == (("a", b"1"), *BUFFER_VERSION), "another program's"


def test_arguments_that_mean_nothing_are_refused() -> None:
    app = App("app")
    table = app.ktable(app.table("prices", key=serdes.string, value=serdes.string))
    wait = until_time_limit(timedelta(seconds=1))
    with pytest.raises(InvalidArgumentError, match="until_time_limit"):
        table.suppress(until_window_closes())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="max_records=-1"):
        table.suppress(wait, max_records=-1)
    with pytest.raises(InvalidArgumentError, match="when_full='wait'"):
        table.suppress(wait, when_full="wait")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="whole milliseconds"):
        until_time_limit(timedelta(seconds=-1))
    grouped = app.stream("clicks", key=serdes.string, value=serdes.string).group_by_key()
    with pytest.raises(InvalidArgumentError, match="until_window_closes"):
        grouped.windowed_by(SessionWindows(timedelta(1))).count().suppress(wait)  # type: ignore[arg-type]
    assert table.suppress(wait).store.name == "KTABLE-SUPPRESS-STATE-STORE-0000000001"
