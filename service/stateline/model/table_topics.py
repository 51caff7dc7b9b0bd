"""How topics of tables keep or delete old records. Pure.

A table has what its topic has. Rows that the topic deleted by age are missing once the table is rebuilt.

| the application reads the topic | its old records |
|---|---|
| as a table | are compacted: the newest of each key stays |
| as a versioned table | are compacted after its history and a day (`stateline.model.store_definition`) |
| as a table and as a stream | stay for ever: compaction would take records from the stream |
| as a stream | as the broker says |

As a table: `app.table`, global tables, a pipeline's `tables` and `static`, and results with ``result="table"``. As a
stream: processors, `app.stream`, a pipeline's `reads`, and results with ``result="stream"``.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline.model.restore_start import may_be_markers
from stateline.model.store_definition import COMPACTED, StoreDefinition
from stateline.model.topology import Topology
from stateline_store import TopicPartition

_FOR_EVER = "-1"
_OR_MARKER = ", perhaps the end of a transaction and no record"
_KEPT = {
    "cleanup.policy": "delete",
    "retention.ms": _FOR_EVER,
    "retention.bytes": _FOR_EVER,  # else a broker's log.retention.bytes counts
    "message.timestamp.type": "CreateTime",
}


def table_settings(topology: Topology) -> dict[str, Mapping[str, str]]:
    """Topic → the settings it is to have, of all that are tables, but for changelogs of other applications (theirs) and
    repartition topics (`stateline.model.internal_topics`)."""
    streams = _read_as_streams(topology)
    return {name: _KEPT if name in streams else _compacted(tables) for name, tables in _tables(topology).items()}


def kept_for_ever(topology: Topology) -> list[str]:
    """The topics that are read as a table and as a stream."""
    return [name for name, settings in table_settings(topology).items() if settings == _KEPT]


def _compacted(tables: list[StoreDefinition]) -> Mapping[str, str]:
    """Return the settings of a changelog of these tables. Windows and sessions stay beyond their retention."""
    versioned = [table for table in tables if table.kind == "versioned"]
    return max(versioned, key=lambda table: table.retention_ms).changelog_settings() if versioned else COMPACTED


def loses_rows(topology: Topology, topic: str, found: Mapping[str, str]) -> bool:
    """Whether a topic with these settings deletes what a table of it needs. One of windows or sessions needs nothing
    that is older than its retention."""
    if "delete" not in found.get("cleanup.policy", ""):
        return False
    kept_ms, needed_ms = found.get("retention.ms", _FOR_EVER), _needed_ms(_tables(topology)[topic])
    by_age = kept_ms != _FOR_EVER and (needed_ms is None or int(kept_ms) < needed_ms)
    return by_age or found.get("retention.bytes", _FOR_EVER) != _FOR_EVER


def forgets(table: StoreDefinition) -> bool:
    """Whether a table deletes old rows by itself, so that its topic may delete them too."""
    return table.plain_kind in ("window", "session")


def beginning_is_lost(table: str, first_offsets: Mapping[TopicPartition, int]) -> str:
    """Return the warning for a table that is read from the beginning, if partitions of its topic begin at these
    offsets above 0."""
    listed = ", ".join(f"{partition} begins at offset {first}" for partition, first in sorted(first_offsets.items()))
    return (
        f"Table {table!r} is read from the beginning of its topic, whose first records were deleted: {listed}. Keys "
        "that were written before, and not since, are missing from the table: write them again."
    )


def never_read(table: str, missed: Mapping[TopicPartition, range]) -> str:
    """Return the error for a table whose topic deleted these offsets before the table read them."""
    return (
        f"Table {table!r} has lost records, which its topic deleted before they were read: {_listed(missed)}. The rows "
        "that it has stay; keys that were put or deleted by those records are missing, or have older values. Write the "
        "keys of those records again, and let the topic keep its records: cleanup.policy=compact, or retention.ms=-1 "
        "where it is read as a stream as well."
    )


def windows_kept(table: str, missed: Mapping[TopicPartition, range]) -> str:
    """Return the warning for a table of windows or sessions whose topic deleted these offsets before it read them."""
    return (
        f"Table {table!r} keeps its rows. Its topic has deleted offsets that it has not read: {_listed(missed)}. "
        "Windows that records there have changed show older values until they expire."
    )


def _listed(missed: Mapping[TopicPartition, range]) -> str:
    return ", ".join(
        f"{place} offsets {each[0]} to {each[-1]} ({len(each)}{_OR_MARKER if may_be_markers(each) else ''})"
        for place, each in missed.items()
    )


def _needed_ms(tables: list[StoreDefinition]) -> int | None:
    """How long records are needed; None for ever, as for the tables of pipelines."""
    return max(table.retention_ms for table in tables) if tables and all(map(forgets, tables)) else None


def _tables(topology: Topology) -> dict[str, list[StoreDefinition]]:
    """Topic → the stores that are tables of it; those of pipelines have none."""
    found: dict[str, list[StoreDefinition]] = {}
    for definition in (*topology.stores.values(), *topology.global_tables.values()):
        source = definition.source
        if source is not None and source.external is None and not source.internal:
            found.setdefault(source.name, []).append(definition)
    for pipeline in topology.pipelines.values():
        results = pipeline.results if pipeline.result == "table" else ()
        for topic in (*pipeline.tables, *pipeline.static, *results):
            if topic.external is None and not topic.internal:
                found.setdefault(topic.name, [])
    return found


def _read_as_streams(topology: Topology) -> set[str]:
    found: set[str] = set()
    for processor in (p for s in topology.subtopologies for p in s.processors if p.punctuation is None):
        if not processor.roots or any(root.table is None for root in processor.roots):
            found.add(processor.source.name)
    for pipeline in topology.pipelines.values():
        results = pipeline.results if pipeline.result == "stream" else ()
        found |= {topic.name for topic in (*pipeline.reads, *results)}
    return found
