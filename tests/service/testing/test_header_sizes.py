"""Headers count in a record's size: a record that its headers make too large is refused, and the worker continues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, SessionWindows, SlidingWindows, TumblingWindows, serdes, stores
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError

SECOND = timedelta(seconds=1)
LIMIT = 100_000 - 16_384  # key, value and headers of a record
SMALL, LARGE = [("small", b"1")], [("large", bytes(LIMIT))]
CONFIG = {"producer.message.max.bytes": "100000", "processing.exception.handler": "skip", "dsl.store.format": "HEADERS"}

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "count": lambda s: s.group_by_key().count("made"),
    "reduce": lambda s: s.group_by_key().reduce(lambda old, new: new, "made"),
    "windowed count": lambda s: s.group_by_key().windowed_by(TumblingWindows(SECOND)).count("made"),
    "windowed reduce": lambda s: (
        s.group_by_key().windowed_by(TumblingWindows(SECOND)).reduce(lambda old, new: new, "made")
    ),
    "sliding": lambda s: s.group_by_key().windowed_by(SlidingWindows(SECOND, grace=SECOND)).count("made"),
    "sessions": lambda s: s.group_by_key().windowed_by(SessionWindows(SECOND)).count("made"),
    "table": lambda s: s.to_table("made"),
}


def headers_in(driver: TestDriver, *, windowed: bool) -> set[Any]:
    store = driver.store("made")
    return {row.headers for row in (store.fetch_all() if windowed else store.all())}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_of_a_store_with_headers_leaves_a_record_of_too_large_headers_out(operator: str) -> None:
    app = App("sizes")
    OPERATORS[operator](app.stream("in", key=serdes.string, value=serdes.string))
    with TestDriver(app, config=CONFIG) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=1, headers=SMALL)
        driver.pipe("in", "a", "y", timestamp_ms=2, headers=LARGE)
        windowed = operator not in ("count", "reduce", "table")
        assert headers_in(driver, windowed=windowed) == {tuple(SMALL)}
        driver.pipe("in", "b", "z", timestamp_ms=3, headers=SMALL)
        assert "b" in {
            row.key for row in (driver.store("made").fetch_all() if windowed else driver.store("made").all())
        }


def test_a_delete_of_too_large_headers_is_left_out_like_a_value() -> None:
    app = App("sizes")
    app.stream("in", key=serdes.string, value=serdes.string).to_table("made")
    with TestDriver(app, config=CONFIG) as driver:
        driver.pipe("in", "a", "x", headers=SMALL)
        driver.pipe("in", "a", None, headers=LARGE)
        assert driver.store("made").get("a") == "x"


def test_a_store_without_headers_takes_a_record_of_large_headers() -> None:
    app = App("sizes")
    app.stream("in", key=serdes.string, value=serdes.string).to_table("made")
    with TestDriver(app, config={**CONFIG, "dsl.store.format": "DEFAULT"}) as driver:
        driver.pipe("in", "a", "x", headers=LARGE)
        assert driver.store("made").get("a") == "x"


def test_a_put_of_too_large_headers_is_refused_where_it_is_made() -> None:
    app = App("sizes")
    kept = app.store(stores.timestamped_key_value("kept", key=serdes.string, value=serdes.string, headers=True))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[kept])
    def keep(record: Any, kept: Any) -> None:
        for headers in (record.headers, LARGE):
            for value in ("x", None):
                with pytest.raises(InvalidArgumentError, match=r"Key .*, its value and its headers have \d+ bytes"):
                    kept.put("a", value, headers=headers)
        kept.put("a", "y", headers=())

    with TestDriver(app, config={**CONFIG, "processing.exception.handler": "skip"}) as driver:
        driver.pipe("in", "a", "x", headers=LARGE)
        assert driver.store("kept").get("a") == "y"
