"""A record's time by its topic's `timestamp`, and Kafka Streams' ways with one that is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stateline import App, serdes
from stateline.log import Record
from stateline.model.event_time import OnInvalid
from stateline.model.topic import Topic
from stateline.processing.event_times import EventTimes
from stateline.processing.failures import FailureHandler
from stateline_store import RecordError, TopicPartition

FLIGHTS = TopicPartition("flights", 0)


def flights(timestamp: Any = "at", on_invalid: OnInvalid = "fail") -> Topic:
    return App("app").topic(
        "flights", key=serdes.string, value=serdes.json, timestamp=timestamp, on_invalid_timestamp=on_invalid
    )


def records(*values: Any) -> list[Record]:
    """With the log's timestamp 5; None is a deletion, bytes are taken as they are."""
    return [
        Record("flights", 0, at, 5, b"k", v if v is None or isinstance(v, bytes) else json.dumps(v).encode())
        for at, v in enumerate(values)
    ]


def times(topic: Topic, given: Sequence[Record], known_ms: int = -1) -> dict[int, int]:
    """By offset, of those that are to be processed."""
    event_times = EventTimes([topic], partition_times={FLIGHTS: known_ms})
    failures = FailureHandler("skip", "fail", None)
    return {r.offset: r.timestamp_ms for r in event_times.admitted(event_times.stamped(given), failures)}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (0, 0),
        (1_700_000_000_123, 1_700_000_000_123),
        (1.9, 1),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:00.0029+02:00", 2),
        ("2013-05-01 12:00:00+00:00", 1_367_409_600_000),
    ],
)
def test_a_field_is_milliseconds_or_a_time_with_its_zone(said: Any, wanted: int) -> None:
    assert times(flights(), records({"at": said})) == {0: wanted}
    assert times(flights("flight.times.at"), records({"flight": {"times": {"at": said}}})) == {0: wanted}


INVALID = [{"at": -1}, {"at": None}, {}, {"at": True}, {"at": "soon"}, {"at": "2013-05-01T12:00:00"}, {"at": [1]}, 7]
INVALID += [{"at": 2**63}, None, {"at": "1960-01-01T00:00:00Z"}]


@pytest.mark.parametrize("bad", INVALID, ids=str)
def test_each_policy_does_with_an_invalid_time_what_kafka_streams_does(bad: Any) -> None:
    given = records({"at": 70}, {"at": 30}, bad, {"at": 50})
    assert times(flights(on_invalid="skip"), given) == {0: 70, 1: 30, 3: 50}
    assert times(flights(on_invalid="partition_time"), given) == {0: 70, 1: 30, 2: 70, 3: 50}
    event_times = EventTimes([flights()])
    with pytest.raises(RecordError, match=r"flights-0 offset 2 .*It has no valid timestamp \(field 'at'\)"):
        event_times.admitted(event_times.stamped(given), FailureHandler("fail", "fail", None))


def test_a_function_gets_the_record_as_it_is_and_the_time_of_its_partition_so_far() -> None:
    seen: list[tuple[Any, Any, int, int]] = []

    def by_value(record: Any, partition_time_ms: int) -> int:
        seen.append((record.key, record.value, record.timestamp_ms, partition_time_ms))
        return int(record.value)

    assert times(flights(by_value), records(40, 20, 90, 60)) == {0: 40, 1: 20, 2: 90, 3: 60}
    assert seen == [("k", 40, 5, -1), ("k", 20, 5, 40), ("k", 90, 5, 40), ("k", 60, 5, 90)]


@pytest.mark.parametrize("said", [None, -1, "70", True, float("inf"), 2**63])
def test_what_a_function_returns_is_a_number_of_milliseconds_or_invalid(said: Any) -> None:
    given = records(1, 2)
    assert times(flights(lambda record, _: 8 if record.value == 1 else said, "partition_time"), given) == {0: 8, 1: 8}


def test_without_a_time_of_the_partition_an_invalid_one_fails_also_under_partition_time() -> None:
    topic = flights(on_invalid="partition_time")
    event_times = EventTimes([topic])
    with pytest.raises(RecordError, match="its partition has no time yet"):
        event_times.admitted(event_times.stamped(records({})), FailureHandler("fail", "fail", None))
    assert times(topic, records({}), known_ms=33) == {0: 33}


@pytest.mark.parametrize("on_invalid", ["fail", "skip", "partition_time"])
def test_a_function_that_raises_and_a_value_that_cannot_be_read_go_the_way_of_bad_records(on_invalid: Any) -> None:
    failures = FailureHandler("dead-letter", "fail", "dead")
    for topic, bad in ((flights(lambda *_: 1 // 0, on_invalid), b"1"), (flights(on_invalid=on_invalid), b"{")):
        event_times = EventTimes([topic], partition_times={FLIGHTS: 3})
        assert list(event_times.admitted(event_times.stamped(records(bad)), failures)) == []
    first, second = failures.take_dead_letters()
    assert dict(first.headers)["__streams.errors.exception"] == b"ZeroDivisionError"
    assert dict(second.headers)["__streams.errors.exception"] == b"InvalidArgumentError"
    assert (first.value, first.timestamp_ms) == (b"1", 5)


def test_what_is_left_out_is_counted_and_what_was_stamped_in_vain_is_forgotten() -> None:
    topic, failures = flights(on_invalid="skip"), FailureHandler("fail", "fail", None)
    event_times = EventTimes([topic])
    given = records({"at": 9}, {}, {})
    event_times.stamped(given)
    assert event_times.partition_times == {}
    event_times.forget(FLIGHTS)
    assert [r.timestamp_ms for r in event_times.admitted(event_times.stamped(given), failures)] == [9]
    assert (failures.dropped, event_times.partition_times) == (2, {FLIGHTS: 9})


def test_what_is_too_far_ahead_of_the_clock_says_nothing_of_the_partitions_time() -> None:
    event_times = EventTimes([flights(on_invalid="partition_time")], max_ahead_ms=1_000)
    given = event_times.stamped(records({"at": 9}, {"at": 2**62}, {}))
    assert [r.timestamp_ms for r in event_times.admitted(given, None)] == [9, 2**62, 9]


def test_topics_without_a_timestamp_keep_the_logs() -> None:
    event_times = EventTimes([App("app").topic("others"), flights()])
    given = [Record("others", 0, 0, -1, None, b"x")]
    assert event_times.admitted(event_times.stamped(given), None) == given
