"""Results of functions that do not fit their serde."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stateline import App, serdes
from stateline.dsl.streams import Stream
from stateline.testing import TestDriver
from stateline_store import RecordError

STEPS: dict[str, Callable[[Stream], Stream]] = {
    "a key": lambda stream: stream.select_key(lambda key, value: 1),
    "a value": lambda stream: stream.map_values(lambda key, value: 1),
    "an aggregate": lambda stream: (
        stream.group_by_key().aggregate(str, lambda key, value, held: 1, "held", value=serdes.string).to_stream()
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_result_of_another_type_is_told_with_the_arguments_for_its_serde(step: str) -> None:
    app = App("app")
    STEPS[step](app.stream("in", key=serdes.string, value=serdes.string)).to("out")
    says = r"1 is not a string\. For another type, pass key=… or value=… with a serde of its type"
    with TestDriver(app) as driver, pytest.raises(RecordError, match=says):
        driver.pipe("in", "k", "v")
