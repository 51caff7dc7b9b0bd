"""Punctuations as an application declares them (`App.punctuate`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from stateline.model.processor import Processor, Punctuation
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline_store import InvalidArgumentError, TopologyError


class Punctuated(NamedTuple):
    function: Callable[..., Any]
    stores: tuple[StoreDefinition, ...]
    forwards: tuple[Topic, ...]
    punctuation: Punctuation


def punctuator(name: str, declared: Punctuated, processors: Sequence[Processor]) -> Processor:
    """Return a processor of a topic that feeds the punctuation's stores. Without such a topic there are no tasks:
    raises `TopologyError`."""
    tables = [store.source for store in declared.stores if store.source is not None]
    sources = [p.source for store in declared.stores for p in processors if store in p.stores]
    if not tables and not sources:
        raise TopologyError(
            f"Punctuation {name!r} uses the store {declared.stores[0].name!r}, which no topic feeds: use one of a "
            "table or of a processor."
        )
    return Processor(
        name,
        declared.function,
        [*tables, *sources][0],
        declared.stores,
        declared.forwards,
        punctuation=declared.punctuation,
    )


def punctuation_of(every: timedelta, on: Literal["stream_time", "wall_clock_time"]) -> Punctuation:
    """Raises `InvalidArgumentError` for less than a millisecond, and for an unknown clock."""
    if not isinstance(every, timedelta) or every < timedelta(milliseconds=1):
        raise InvalidArgumentError(f"every={every!r} is no interval: give a timedelta of 1 millisecond or more.")
    if on not in ("stream_time", "wall_clock_time"):
        raise InvalidArgumentError(f"on={on!r} is no time to go by: give 'stream_time' or 'wall_clock_time'.")
    return Punctuation(every // timedelta(milliseconds=1), on)
