"""Stored values, Positions and changelog headers against Kafka Streams' own."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.golden import section, unhex
from stateline.log.interface import Record
from stateline.processing.changelog import position_of_changelog
from stateline_store import Position
from stateline_store.rows.headers import join_headers, split_headers
from stateline_store.rows.timestamped_rows import join, split
from stateline_store.rows.versioned_rows import Version, append, bounds, find, new_row, versions
from stateline_store.rows.versioned_rows import join as join_row


def test_timestamped_values_are_kafka_streams_bytes_and_are_read_back() -> None:
    for vector in section("timestamped_values"):
        if vector["value"] is None:
            assert vector["bytes"] is None  # a delete, whatever its timestamp
            continue
        value = unhex(vector["value"])
        assert join(value, vector["timestamp"]) == unhex(vector["bytes"])
        assert split(unhex(vector["bytes"])) == (value, vector["timestamp"])


def test_headers_of_values_are_kafka_streams_bytes_and_are_read_back() -> None:
    for vector in section("values_with_headers"):
        value = unhex(vector["value"])
        headers = tuple((h["name"], None if h["value"] is None else unhex(h["value"])) for h in vector["headers"])
        joined = unhex(vector["aggregation"])
        assert join_headers(value, headers) == joined
        assert split_headers(joined) == (value, headers)
        before = joined[: len(joined) - len(value)]  # of key-values and windows the timestamp is between
        assert before + join(value, vector["timestamp"]) == unhex(vector["bytes"])


def test_a_position_of_kafka_streams_is_read_and_ours_is_as_long_and_says_the_same() -> None:
    for vector in section("positions"):
        position, data = Position.from_json(vector["position"]), unhex(vector["bytes"])
        assert dict(Position.decode(data)) == dict(position)
        assert len(position.encode()) == len(data)
        assert sorted(position.encode()) == sorted(data)  # topics and partitions may come in another order


def test_a_position_of_one_topic_is_kafka_streams_bytes() -> None:
    alike = [vector for vector in section("positions") if len(vector["position"]) < 2]
    assert len(alike) >= 4
    for vector in alike:
        assert Position.from_json(vector["position"]).encode() == unhex(vector["bytes"])


def test_a_position_is_read_from_the_headers_that_kafka_streams_writes() -> None:
    (names,) = section("changelog_headers")
    for vector in section("positions"):
        headers = ((names["version_name"], unhex(names["version"])), (names["position_name"], unhex(vector["bytes"])))
        record = Record("changelog", 0, 7, 0, b"k", b"v", headers)
        assert dict(position_of_changelog([record])) == dict(Position.from_json(vector["position"]))


def test_the_latest_value_of_a_versioned_store_is_kafka_streams_bytes() -> None:
    for vector in section("latest_values"):
        assert join(unhex(vector["value"]), vector["timestamp"]) == unhex(vector["bytes"])


ROW_STEPS = [
    pytest.param(step, id=f"{row['name']}-{number}")
    for row in section("versioned_rows")
    for number, step in enumerate(row["steps"])
]


@pytest.mark.parametrize("step", ROW_STEPS)
def test_a_row_of_kafka_streams_holds_what_kafka_streams_finds_in_it(step: dict[str, Any]) -> None:
    row = unhex(step["bytes"])
    assert bounds(row) == (step["next"], step["min"])
    held = [Version(version["from"], unhex(version["value"]), version["to"]) for version in step["versions"]]
    if not held:  # degenerate: one tombstone that is valid for no time
        held = [Version(step["min"], None, step["next"])]
    assert versions(row) == held
    assert join_row(held) == row
    for version in step["versions"]:
        for moment in (version["from"], version["to"] - 1):
            assert find(row, moment) == Version(version["from"], unhex(version["value"]), version["to"])


@pytest.mark.parametrize("row", section("versioned_rows"), ids=lambda row: row["name"])
def test_a_row_grows_by_a_newer_version_as_kafka_streams_lets_it_grow(row: dict[str, Any]) -> None:
    data = b""
    for step in row["steps"]:
        given = (step["from"], unhex(step["value"]), step["to"])
        if step["step"] == "begin":
            assert new_row(*given) == unhex(step["bytes"])
        elif step["step"] == "latest" and step["from"] >= bounds(data)[0]:
            assert append(data, *given) == unhex(step["bytes"])
        data = unhex(step["bytes"])
