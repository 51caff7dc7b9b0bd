"""Stores of Kafka Streams applications, kept here from their changelogs and served, read only. Pure.

A changelog's records are the rows of a store: key, value and timestamp, in bytes that the stores here share
(docs/formats/changelogs.md). So such a store is a table of that topic, of any kind that Kafka Streams has.
"""

from __future__ import annotations

from dataclasses import replace

from stateline.model.store_definition import StoreDefinition, changelog_name
from stateline.model.topic import Topic, checked_name, checked_store_name
from stateline.serde.external import ExternalKey, ExternalValue
from stateline.serde.plain import Serde
from stateline.serde.windowed import WindowedSerde
from stateline_store import TopologyError

_KINDS = ("key_value", "timestamped_key_value", "window", "timestamped_window", "session", "versioned")


def changelog_of(own_application: str, definition: StoreDefinition, of: str, changelog: str | None) -> Topic:
    """The topic that a store of the application `of` is read from, `changelog` or that of Kafka Streams' name.

    Raises `TopologyError` when `of` is the own application, and for a definition that is none of Kafka Streams' kinds.
    """
    checked_name("application", of)
    if of == own_application:
        raise TopologyError(
            f"of={of!r} is this application's own id: its workers would join the consumer group of the other one and "
            f"commit offsets for it. Give this one another id, as in App({of + '-http'!r})."
        )
    known = definition.kind in _KINDS or (definition.headers and definition.kind == "timestamped_session")
    if not known or definition.source is not None or not definition.logged:
        raise TopologyError(
            f"{definition.name!r} cannot be a store of Kafka Streams application {of!r}: "
            f"{_what_it_is(definition)}. Declare it as it is there, with stores.…, as one of {', '.join(_KINDS)}."
        )
    whose = f"Store {definition.name!r} of Kafka Streams application {of!r}"
    return Topic(
        checked_name("topic", changelog or changelog_name(of, definition.name)),
        ExternalKey(changelog_key(definition), whose, definition.plain_kind, definition.retain_duplicates),
        ExternalValue(definition.value, whose),
        external=of,
    )


def kept_from(topic: Topic, definition: StoreDefinition, name: str | None) -> StoreDefinition:
    """Return the store kept here from its changelog, under this name or its own."""
    return replace(definition, name=checked_store_name(name or definition.name), source=topic)


def settings_of_changelog(definition: StoreDefinition) -> dict[str, str]:
    """Return the settings that Kafka Streams gives the changelog of such a store. They differ by the kind of store."""
    versions = {} if definition.kind == "versioned" else {"min.compaction.lag.ms": "0"}
    return {**versions, **definition.changelog_settings()}


def written_by_us(changelog: Topic, writer: str) -> TopologyError:
    """Return the error for a write to another application's changelog, which would ruin the store."""
    return TopologyError(
        f"{writer} writes to {changelog.name!r}, a changelog of Kafka Streams application {changelog.external!r}: it "
        "is read only here. Write to a topic that the application reads."
    )


def _what_it_is(definition: StoreDefinition) -> str:
    if definition.source is not None:
        return "it is a table"
    return "it has no changelog" if not definition.logged else f"it is of kind {definition.kind}"


def changelog_key(definition: StoreDefinition) -> Serde:
    """Return the type of the keys in a store's changelog: those of windows and sessions have their times."""
    match definition.plain_kind:
        case "window":
            return WindowedSerde(definition.key, "window")
        case "session":
            return WindowedSerde(definition.key, "session")
        case _:
            return definition.key
