"""Values that JSON does not have, on each way into bytes: every one is refused by the policy for what fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, InputRecord, Output, StoreView, TumblingWindows, serdes, stores
from stateline.dsl.streams import Stream
from stateline.model.topic import Topic
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError

VALUE, KEY = {"mean": math.nan, "none": None}, (1, math.inf)
WINDOWS = TumblingWindows(timedelta(minutes=1))


def _put(app: App, texts: Topic) -> None:
    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.json))

    @app.process(texts, stores=[kept])
    def put(record: InputRecord, kept: StoreView) -> None:
        kept.put("k", VALUE)


def _forward(app: App, texts: Topic) -> None:
    @app.process(texts, forwards=[app.topic("out", key=serdes.json, value=serdes.json)])
    def forward(record: InputRecord, out: Output) -> None:
        out.forward(KEY if record.value == "key" else "k", VALUE)


def _look_up(app: App, texts: Topic) -> None:
    kept = app.store(stores.key_value("kept", key=serdes.json, value=serdes.json))

    @app.process(texts, stores=[kept])
    def look_up(record: InputRecord, kept: StoreView) -> None:
        kept.get(KEY)


def _stream(make: Callable[[Stream, App], Any]) -> Callable[[App, Topic], Any]:
    return lambda app, texts: make(app.stream(texts), app)


WAYS: dict[str, Callable[[App, Topic], Any]] = {
    "put": _put,
    "forward": _forward,
    "look up": _look_up,
    "aggregate": _stream(
        lambda s, app: s.group_by_key().aggregate(dict, lambda k, v, a: VALUE, "kept", value=serdes.json)
    ),
    "windows": _stream(
        lambda s, app: (
            s.group_by_key()
            .windowed_by(WINDOWS)
            .aggregate(dict, lambda k, v, a: VALUE, store="kept", value=serdes.json)
        )
    ),
    "map_values": _stream(lambda s, app: s.map_values(lambda k, v: VALUE, value=serdes.json).to_table("kept")),
    "to": _stream(
        lambda s, app: s.map_values(lambda k, v: VALUE, value=serdes.json).to(
            app.topic("out", key=serdes.string, value=serdes.json)
        )
    ),
    "group_by": _stream(
        lambda s, app: s.group_by(lambda k, v: KEY, name="by", key=serdes.json).count("kept"),
    ),
    "repartition": _stream(
        lambda s, app: s.select_key(lambda k, v: KEY, key=serdes.json).repartition("by").to_table("kept")
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_value_or_key_that_json_does_not_have_is_a_dead_letter_and_nothing_is_written(way: str) -> None:
    config = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "dead"}
    app = App("ways", config=config)
    WAYS[way](app, app.topic("in", key=serdes.string, value=serdes.string))
    with TestDriver(app) as driver:
        for value in ("value", "key"):
            driver.pipe("in", "k", value, timestamp_ms=1)
            (dead,) = driver.dead_letters()
            assert (dead.error, dead.value) == ("InvalidArgumentError", value.encode())
            assert "nan at 'mean'" in dead.message or "inf at '[1]'" in dead.message
        if way in ("forward", "to"):
            assert driver.read("out") == []
        elif way != "look up":
            query = "windows" if way == "windows" else "range"
            assert driver.client.get(f"/v1/stores/kept/{query}").json()["entries"] == []


def test_a_driver_refuses_to_pipe_them() -> None:
    app = App("piped")
    app.table("in", key=serdes.json, value=serdes.json, store="kept")
    with TestDriver(app) as driver:
        for key, value in (("k", VALUE), (KEY, 1)):
            with pytest.raises(InvalidArgumentError, match="cannot be written as JSON"):
                driver.pipe("in", key, value)
        driver.pipe("in", (1, None), {"mean": None})
        assert driver.store("kept").get([1, None]) == {"mean": None}
