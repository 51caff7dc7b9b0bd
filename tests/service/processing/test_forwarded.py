"""What a function forwards wrongly fails in the function, where its policy takes it."""

from __future__ import annotations

from typing import Any

import pytest

from stateline import App, InputRecord, Output, serdes
from stateline.testing import TestDriver

TEXTS: Any = {"key": serdes.string, "value": serdes.string}
NO_TIMES = [1500.5, "1500", -1, 2**63, 2**70]
NO_HEADERS = [[("a", "b")], {"a": b"b"}, [(1, b"b")], [("a",)], "ab", [b"ab"]]


@pytest.mark.parametrize(
    "given", [*({"timestamp_ms": each} for each in NO_TIMES), *({"headers": each} for each in NO_HEADERS)]
)
def test_a_record_that_no_log_takes_is_set_aside_with_the_one_that_it_was_made_of(given: dict[str, Any]) -> None:
    settings = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "failed"}
    app = App("forwards", config=settings)
    out = app.topic("out", **TEXTS)

    @app.process("in", **TEXTS, forwards=[out])
    def hand_on(record: InputRecord, out: Output) -> None:
        out.forward(record.key, record.value, **(given if record.value == "wrong" else {}))

    with TestDriver(app) as driver:
        for value in ("wrong", "right"):
            driver.pipe("in", "k", value, timestamp_ms=1)
        (letter,) = driver.dead_letters()
        assert (letter.value, letter.error) == (b"wrong", "InvalidArgumentError")
        assert [record.value for record in driver.read("out")] == ["right"]
