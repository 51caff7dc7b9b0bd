"""`UnlimitedWindows` from record to answer. Golden vectors compare the stores and changelogs with Kafka Streams'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stateline import App, UnlimitedWindows, on_window_close, serdes, until_window_closes
from stateline.dsl.streams import WindowedStream
from stateline.model.internal_topics import created_topics
from stateline.server.changes.routes import change_members
from stateline.testing import TestDriver
from stateline.testing.records import TopicReader
from stateline_store import InvalidArgumentError

START = datetime.fromtimestamp(3, UTC)
FOREVER_MS = 2**63 - 1


def windowed(app: App, windows: Any = None) -> WindowedStream:
    return app.stream("a", key=serdes.string, value=serdes.string).group_by_key().windowed_by(windows)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_one_window_takes_every_record_from_its_start_on_over_restarts_and_a_lost_disk(guarantee: str) -> None:
    app = App("unlimited", config={"processing.guarantee": guarantee})
    one = windowed(app, UnlimitedWindows(START))
    one.count("counts").to_stream().to("out")
    one.aggregate(str, lambda key, value, made: made + value, "texts", value=serdes.string)
    with TestDriver(app) as driver:
        for value, at_ms in (("early", 2_999), ("b", 3_000), ("c", 10**12), ("d", 3_001)):
            driver.pipe("a", "k", value, timestamp_ms=at_ms)
        driver.restart()
        driver.pipe("a", "k", "e", timestamp_ms=5_000)
        driver.crash()
        driver.pipe("a", "k", "f", timestamp_ms=5_000)
        assert [(row.key.start_ms, row.value, row.timestamp_ms) for row in driver.read("out")] == [
            (3_000, count, at_ms) for count, at_ms in ((1, 3_000), (2, 10**12), (3, 10**12), (4, 10**12), (5, 10**12))
        ]
        assert [row.value for row in driver.store("texts").fetch_all()] == ["bcdef"]


def test_answers_end_such_a_window_at_the_largest_time() -> None:
    app = App("unlimited")
    windowed(app, UnlimitedWindows()).count("counts")
    with TestDriver(app) as driver:
        driver.pipe("a", "k", "v", timestamp_ms=7)
        found = driver.client.get("/v1/stores/counts/keys/k/windows").json()["entries"]
        assert found == [{"start": 0, "end": FOREVER_MS, "value": 1, "timestamp": 7}]
        changelog = TopicReader(app.topology())._raw(driver._place.log, "unlimited-counts-changelog")
        changed = change_members(app.topology().stores["counts"], changelog[0])
        assert (changed["start"], changed["end"]) == (0, FOREVER_MS)
        rows = driver.client.post("/v1/sql", json={"sql": 'SELECT key, year("end") AS y FROM counts'}).text
        assert "294247" in rows


def test_its_changelog_is_kept_for_ever() -> None:
    app = App("unlimited")
    windowed(app, UnlimitedWindows()).count("counts")
    (changelog,) = created_topics(app.topology())
    assert changelog.settings["retention.ms"] == str(FOREVER_MS)


@pytest.mark.parametrize("start", [datetime(2026, 1, 1), datetime(1969, 1, 1, tzinfo=UTC), 5])
def test_a_start_without_a_zone_or_before_1970_is_refused(start: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a datetime with a zone, 1970 or later"):
        UnlimitedWindows(start)


def test_what_an_unlimited_window_cannot_have_is_refused() -> None:
    app = App("unlimited")
    one = windowed(app, UnlimitedWindows())
    with pytest.raises(InvalidArgumentError, match="Leave the grace out"):
        UnlimitedWindows(grace=timedelta(seconds=1))
    with pytest.raises(InvalidArgumentError, match="are kept for ever"):
        one.count("short", retention=timedelta(days=1))
    with pytest.raises(InvalidArgumentError, match="nothing would be emitted"):
        one.emit_strategy(on_window_close())
    with pytest.raises(InvalidArgumentError, match="nothing would be emitted"):
        one.count("counts").suppress(until_window_closes())
