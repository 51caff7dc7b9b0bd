"""Records of the far future go by the policy of what cannot be read, if `max.timestamp.ahead.ms` is set."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from service.worker.faults import IN, Entry, Place, counting
from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import Record
from stateline.processing.reading import timely
from stateline.processing.store_views import WindowView
from stateline.worker import InputRecord
from stateline_store import RecordError
from support.processes.running_worker import create, read_all

HOUR_MS = 3_600_000
YEAR_2200_MS = 7_258_118_400_000
BOUND: dict[str, Any] = {"max__timestamp__ahead__ms": HOUR_MS}


def records(now_ms: int) -> list[Entry]:
    """`b` is of the year 2200, the others of now."""
    return [(b"a", b"1", now_ms), (b"b", b"2", YEAR_2200_MS), (b"c", b"3", now_ms + HOUR_MS // 2)]


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


def table() -> App:
    app = App("app")
    app.table(app.topic("in", key=serdes.string, value=serdes.string), store="newest")
    return app


@pytest.mark.parametrize(("app", "store"), [(table(), "newest"), (counting(), "counts")], ids=["table", "processor"])
@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_what_is_too_far_ahead_is_left_out_under_the_policies_that_go_on(
    place: Place, now_ms: int, app: App, store: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(place.log, {"dead": 1})
    place.send(records(now_ms))
    dead: dict[str, Any] = {"errors__dead__letter__queue__topic__name": "dead"}
    config = place.config(app, deserialization__exception__handler=policy, **BOUND, **dead)
    assert place.work_off(app, config, 2, store).rows(store, 1).keys() == {b"a", b"c"}
    assert f"Its timestamp, {YEAR_2200_MS}, is" in caplog.text
    letters = read_all(place.log, "dead", 1)
    assert [letter.key for letter in letters] == ([b"b"] if policy == "dead-letter" else [])
    assert all(abs(letter.timestamp_ms - now_ms) < HOUR_MS for letter in letters)


def test_under_fail_the_worker_ends_and_names_the_record_and_the_setting(place: Place, now_ms: int) -> None:
    app = counting()
    place.send(records(now_ms))
    config = place.config(app, **BOUND)
    with pytest.raises(RecordError, match=r"in-0 offset 1 key b'b'.*max\.timestamp\.ahead\.ms is 3600000"):
        place.worker(app, config).reach(lambda: False)
    assert place.stores(app, config).rows("counts", 1) == {}


def test_without_the_setting_any_timestamp_is_taken(place: Place, now_ms: int) -> None:
    app = counting()
    place.send(records(now_ms))
    assert place.work_off(app, place.config(app), 2).rows("counts", 1).keys() == {b"a", b"b", b"c"}


def test_a_slice_of_nothing_else_is_passed_over(place: Place) -> None:
    app = table()
    place.send([(b"b", b"2", YEAR_2200_MS)] * 3)
    worker = place.worker(app, place.config(app, deserialization__exception__handler="skip", **BOUND))
    worker.reach(lambda: worker.read_up_to(IN) == 3)
    assert worker.failures.skipped == 3


def test_a_table_that_is_rebuilt_leaves_them_out_again(place: Place, now_ms: int) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    app.table(source, store="newest")
    app.process(source, name="beside")(lambda record: None)  # so that the group says where to go on
    place.send(records(now_ms))
    config = place.config(app, deserialization__exception__handler="skip", **BOUND)
    place.work_off(app, config, 2, "newest")
    place.lose_disk(config)
    found = place.stores(app, config)
    place.worker(app, config).reach(lambda: len(found.rows("newest", 1)) >= 2)
    assert found.rows("newest", 1).keys() == {b"a", b"c"}


def windows(look: list[InputRecord]) -> App:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    visits = app.store(
        stores.window(
            "visits", key=serdes.string, value=serdes.string, size=timedelta(minutes=1), retention=timedelta(hours=1)
        )
    )

    @app.process(source, stores=[visits])
    def visit(record: InputRecord, visits: WindowView) -> None:
        look.append(record)
        visits.put(record.key, record.value, record.timestamp_ms // 60_000 * 60_000)

    return app


@pytest.mark.parametrize(("settings", "kept"), [({}, 1), (BOUND, 2)], ids=["unbounded", "bounded"])
def test_one_record_of_the_year_2200_does_not_end_all_windows(
    place: Place, now_ms: int, settings: dict[str, Any], kept: int
) -> None:
    app = windows([])
    place.send(records(now_ms))
    config = place.config(app, deserialization__exception__handler="skip", **settings)
    assert len(place.work_off(app, config, 2, "visits").rows("visits", 1)) == kept


def test_nothing_is_looked_at_without_a_limit() -> None:
    given = [Record("in", 0, n, YEAR_2200_MS, b"k", b"v") for n in range(3)]
    assert timely(given, -1, None) is given
    assert timely(given, YEAR_2200_MS, None) is given
    assert timely(given[:1], 0, None) == []


def test_a_record_at_the_bound_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 5_000 * 1_000_000)
    at, beyond = (Record("in", 0, n, 6_000 + n, b"k", b"v") for n in range(2))
    assert timely([at, beyond], 1_000, None) == [at]
