"""The declared source of a topic's event times, if it is not the log (`App.topic`). Pure.

It corresponds to Kafka Streams' `TimestampExtractor`, with its three policies for invalid times
(`FailOnInvalidTimestamp`, `LogAndSkipOnInvalidTimestamp`, `UsePartitionTimeOnInvalidTimestamp`).
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
"""The policy for a record without a valid time: it is unreadable, it is dropped, or it gets the largest time of its
partition so far."""

Extractor: TypeAlias = Callable[[Any, int], Any]
"""Returns milliseconds since the epoch, from a record (`InputRecord`) and its partition's time so far (-1: none)."""

# Their values are mappings, or have attributes, with the fields' names.
_WITH_FIELDS = (AvroSerde, JsonSchemaSerde, MsgpackSerde, ModelSerde)
POLICIES: tuple[OnInvalid, ...] = get_args(OnInvalid)


@dataclass(frozen=True, slots=True)
class EventTime:
    """`source` is a field of the value, with a dot for each level, or a function."""

    source: str | Extractor
    on_invalid: OnInvalid = "fail"

    @property
    def path(self) -> tuple[str, ...] | None:
        """The field's names by level; None for a function."""
        return tuple(self.source.split(".")) if isinstance(self.source, str) else None

    @property
    def described(self) -> str:
        """The source of the time, for messages."""
        if isinstance(self.source, str):
            return f"field {self.source!r}"
        return f"function {getattr(self.source, '__name__', None) or shown(self.source)}"


def declared_event_time(topic: str, value: Serde, source: object, on_invalid: object) -> EventTime | None:
    """Return the event time of `App.topic`'s arguments, or None without `timestamp`.

    Raises `InvalidArgumentError` for an unknown policy, a policy without `timestamp`, or an invalid name of a field.
    Raises `TopologyError` for a field if values are not JSON, and for a function with other parameters.
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
    """Raise `TopologyError` for an event time that Spark cannot compute. Spark calls no Python function per record,
    knows no order of a partition's records, and reads only JSON."""
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
