"""Where a topic's records have their time from: what cannot be is refused where it is declared."""

from __future__ import annotations

from typing import Any

import pytest

from stateline import App, serdes
from stateline_store import InvalidArgumentError, StatelineError, TopologyError


def of_record(record: Any, partition_time_ms: int) -> int:
    return int(record.value["at"])


async def never_run(record: Any, partition_time_ms: int) -> int:
    return 0


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"timestamp": "at", "value": serdes.string}, TopologyError, "'at' is a field of a JSON value.*are string"),
        ({"timestamp": "at"}, TopologyError, "values are bytes: declare value=serdes.json, or give a function"),
        ({"timestamp": ""}, InvalidArgumentError, "timestamp='' names no field"),
        ({"timestamp": "flight."}, InvalidArgumentError, "timestamp='flight.' names no field"),
        ({"timestamp": 7}, TopologyError, "was given 7 as its timestamp: give a function"),
        ({"timestamp": lambda record: 1}, TopologyError, "with 2 arguments: record, partition_time_ms"),
        ({"timestamp": never_run}, TopologyError, "which is async and would never run"),
        (
            {"timestamp": of_record, "on_invalid_timestamp": "ignore"},
            InvalidArgumentError,
            "on_invalid_timestamp='ignore': use one of fail, skip, partition_time",
        ),
        ({"on_invalid_timestamp": "skip"}, InvalidArgumentError, "on_invalid_timestamp='skip' needs timestamp="),
    ],
)
def test_what_cannot_be_a_timestamp_is_refused_with_the_place_of_its_declaration(
    given: dict[str, Any], kind: type[StatelineError], said: str
) -> None:
    with pytest.raises(kind, match=rf"Topic 'flights'.*{said}.*test_event_time.py, line"):
        App("app").topic("flights", **given)


def test_a_topic_that_is_declared_twice_has_one_timestamp() -> None:
    app = App("app")
    app.topic("flights", value=serdes.json, timestamp="at")
    with pytest.raises(TopologyError, match=r"is declared in .* already, with other timestamp"):
        app.topic("flights", value=serdes.json, timestamp="at", on_invalid_timestamp="skip")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timestamp": of_record}, "whose timestamp is a function of_record, which Spark cannot call: name a field"),
        ({"timestamp": "at", "on_invalid_timestamp": "partition_time"}, "Spark has no time of a partition: set 'fail'"),
    ],
)
@pytest.mark.parametrize("role", ["reads", "tables", "static"])
def test_a_pipeline_refuses_timestamps_that_spark_cannot_tell(given: dict[str, Any], said: str, role: str) -> None:
    app = App("app")
    flights = app.topic("flights", key=serdes.string, value=serdes.json, **given)
    inputs: dict[str, Any] = {"reads": ["others"], role: [flights]}
    with pytest.raises(TopologyError, match=f"Pipeline 'late' .* 'flights'.*{said}"):
        app.pipeline(writes="out", key="k", name="late", **inputs)(lambda *frames: frames[0])
