"""Declared topics, and names that Kafka accepts. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stateline.model.event_time import EventTime
from stateline.serde.plain import Serde, check_serde
from stateline_store import InvalidArgumentError

# Kafka's rule for topic names; store names become parts of topic names and of paths.
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def checked_name(what: str, name: str) -> str:
    """Return the name. Raises `InvalidArgumentError` unless Kafka accepts it as part of a topic name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidArgumentError(f"{name!r} cannot be used as {what} name: use 1 to 200 of a-z A-Z 0-9 . _ - only.")
    return name


def checked_store_name(name: str) -> str:
    """Return the name. Raises `InvalidArgumentError` if Kafka refuses it, or if Stateline has a file of that name."""
    taken = checked_name("store", name).startswith(".") or name in ("rocksdb", "topics.json")
    if taken or name.endswith(("-v2", ".notice", ".position")):
        raise InvalidArgumentError(
            f"{name!r} cannot be used as store name: Stateline's own files are called so. Taken are 'rocksdb', "
            "'topics.json', names that begin with '.', and those that end with '-v2', '.notice' or '.position'."
        )
    return name


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the types of its records.

    - `schema` is a Spark DDL string (``"tailnum string, delay double"``) of JSON values, for pipelines.
    - Stateline creates `internal` topics and results of pipelines, with `partitions` if set. Other topics must exist.
    - `external` is the id of the Kafka Streams application that owns this changelog, creates it and writes to it.
    - `event_time` reads the time from records. None: the log's timestamps.
    """

    name: str
    key: Serde
    value: Serde
    schema: str | None = None
    partitions: int | None = None
    internal: bool = False
    external: str | None = None
    event_time: EventTime | None = None

    def __post_init__(self) -> None:
        check_serde(self.key)
        check_serde(self.value)
