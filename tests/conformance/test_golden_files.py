"""`.checkpoint` and `.position` files against Kafka Streams' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.golden import section
from stateline_store import DamagedDataError, NewerFormatError, Position, TopicPartition
from stateline_store.files.offset_checkpoint import read_offset_checkpoint, read_position, write_offset_checkpoint


def offsets_of(vector: dict[str, Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for topic, partition, offset in vector["offsets"]}


def sorted_lines(text: str) -> list[str]:
    """Version and number first, then the entries: Kafka Streams writes those in hash order."""
    version, count, *entries = text.splitlines(keepends=True)
    return [version, count, *sorted(entries)]


@pytest.mark.parametrize("vector", section("checkpoint_files"))
def test_a_checkpoint_is_read_and_written_as_kafka_streams_does(vector: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / ".checkpoint"
    path.write_bytes(vector["text"].encode())
    assert read_offset_checkpoint(path) == offsets_of(vector)
    write_offset_checkpoint(path, offsets_of(vector))
    assert sorted_lines(path.read_bytes().decode()) == sorted_lines(vector["text"])


@pytest.mark.parametrize("vector", section("position_files"))
def test_a_position_file_of_kafka_streams_is_read(vector: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "s.position"
    path.write_bytes(vector["text"].encode())
    assert dict(read_position(path)) == dict(Position.from_json(vector["position"]))


@pytest.mark.parametrize("vector", section("checkpoint_texts"), ids=lambda vector: repr(vector["text"]))
def test_what_kafka_streams_accepts_is_accepted_and_what_it_refuses_is_newer_or_damage(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / ".checkpoint"
    path.write_bytes(vector["text"].encode())
    if vector["text"].startswith("1\n"):
        with pytest.raises(NewerFormatError, match="version 1"):
            read_offset_checkpoint(path)
    elif vector["offsets"] is None:
        with pytest.raises(DamagedDataError, match=r"\.checkpoint is damaged"):
            read_offset_checkpoint(path)
    else:
        assert read_offset_checkpoint(path) == offsets_of(vector)
