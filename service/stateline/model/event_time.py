"""Where a topic's records have their time from, when it is not the log's: as `App.topic` declares it. Pure.

Kafka Streams' `TimestampExtractor`, and its three ways with a time that is none (`FailOnInvalidTimestamp`,
`LogAndSkipOnInvalidTimestamp`, `UsePartitionTimeOnInvalidTimestamp`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from stateline.model.function_checks import check_function
from stateline.serde.avro import AvroSerde
from stateline.serde.json_schema import JsonSchemaSerde
from stateline.serde.model import ModelSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.plain import Serde, shown
from stateline.serde.shown_as_json import SHOWN_AS_JSON
from stateline_store import InvalidArgumentError, TopologyError

OnInvalid: TypeAlias = Literal["fail", "skip", "partition_time"]
"""What becomes of a record without a valid time: the way of records that cannot be read; it is left out; it gets the
largest time of its partition so far."""

Extractor: TypeAlias = Callable[[Any, int], Any]
"""Of a record (`InputRecord`) and its partition's time so far (-1: none yet) the milliseconds since the epoch."""

# Of which a value is a mapping, or has attributes, of these names.
_WITH_FIELDS = (AvroSerde, JsonSchemaSerde, MsgpackSerde, ModelSerde)
POLICIES: tuple[OnInvalid, ...] = get_args(OnInvalid)


@dataclass(frozen=True, slots=True)
class EventTime:
    """`source`: a field of the value, a dot goes one level deeper; or a function."""

    source: str | Extractor
    on_invalid: OnInvalid = "fail"

    @property
    def path(self) -> tuple[str, ...] | None:
        """The field's name, level by level; None of a function."""
        return tuple(self.source.split(".")) if isinstance(self.source, str) else None

    @property
    def described(self) -> str:
        """The source of the time, for messages."""
        if isinstance(self.source, str):
            return f"field {self.source!r}"
        return f"function {getattr(self.source, '__name__', None) or shown(self.source)}"


def declared_event_time(topic: str, value: Serde, source: object, on_invalid: object) -> EventTime | None:
    """Return the event time that `App.topic` was given, None without `timestamp`.

    Raises `InvalidArgumentError` for another policy, a policy without `timestamp`, or a name that is no field's;
    `TopologyError` for a field of a value that is not JSON, and for a function that cannot be called so.
    """
    policy = next((each for each in POLICIES if each == on_invalid), None)
    if on_invalid is not None and policy is None:
        raise InvalidArgumentError(
            f"Topic {topic!r}: on_invalid_timestamp={on_invalid!r}: use one of {', '.join(POLICIES)}."
        )
    if source is None:
        if policy is not None:
            raise InvalidArgumentError(
                f"Topic {topic!r}: on_invalid_timestamp={on_invalid!r} needs timestamp=…: without "
                "it records have the log's timestamps, which are valid."
            )
        return None
    if not isinstance(source, str):
        check_function(f"Topic {topic!r}", source, "record", "partition_time_ms", role="timestamp")
        assert callable(source), "check_function takes nothing else"
        return EventTime(source, policy or "fail")
    if not source or not all(source.split(".")):
        raise InvalidArgumentError(
            f"Topic {topic!r}: timestamp={source!r} names no field: give one as in 'flown_at', or "
            "'flight.flown_at' for one within another."
        )
    if value.name != "json" and not isinstance(value, _WITH_FIELDS):
        raise TopologyError(
            f"Topic {topic!r}: timestamp={source!r} is a field of a JSON value, and its values are "
            f"{value.name}: declare value=serdes.json, or give a function of (record, partition_time_ms)."
        )
    return EventTime(source, policy or "fail")


def refuse_in_pipeline(pipeline: str, topic: str, event_time: EventTime | None, value: Serde) -> None:
    """Raise `TopologyError` for what Spark cannot tell of a topic: it calls no Python function for each record, knows
    no order between the records of a partition, and looks into no bytes but JSON."""
    if event_time is None:
        return
    way_out = (
        "name a field (timestamp='flown_at'), or leave `timestamp` out for a topic that pipelines read, and let the "
        "pipeline take the time from its columns."
    )
    if event_time.path is not None and isinstance(value, SHOWN_AS_JSON):
        raise TopologyError(
            f"Pipeline {pipeline!r} reads {topic!r}, whose timestamp is a {event_time.described} of "
            f"{value.name}, which Spark cannot read: leave `timestamp` out for a topic that pipelines read."
        )
    if event_time.path is None:
        raise TopologyError(
            f"Pipeline {pipeline!r} reads {topic!r}, whose timestamp is a {event_time.described}, "
            f"which Spark cannot call: {way_out}"
        )
    if event_time.on_invalid == "partition_time":
        raise TopologyError(
            f"Pipeline {pipeline!r} reads {topic!r} with on_invalid_timestamp='partition_time', and "
            f"Spark has no time of a partition: set 'fail' or 'skip', or {way_out}"
        )
