"""The examples of docs/formats are bytes that Kafka Streams wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.golden import section

_FORMATS = Path(__file__).parents[2] / "docs" / "formats"
_HEX_LINE = re.compile(r"^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$")
_OF_STORES = ("windows", "versions")


def page(name: str) -> str:
    return (_FORMATS / f"{name}.md").read_text()


def examples(name: str) -> list[str]:
    """The hex of each block of indented lines, comments left out."""
    blocks: list[list[str]] = [[]]
    for line in page(name).splitlines():
        if found := _HEX_LINE.match(line):
            blocks[-1].append(found[1].replace(" ", ""))
        elif blocks[-1]:
            blocks.append([])
    return ["".join(block) for block in blocks if block]


def written() -> set[str]:
    """Every changelog key, and every stored key and value as one text, of the histories."""
    steps = [step for history in section("stores") for step in history["steps"]]
    keys = {record["key"] for step in steps for record in step["records"]}
    rows = [row for step in steps for row in step["rows"] if row[0] is not None]
    return keys | {(segment % 2**64).to_bytes(8).hex() + key + value for segment, key, value in rows}


@pytest.mark.parametrize("name", _OF_STORES)
def test_examples_of_stores_are_bytes_of_kafka_streams(name: str) -> None:
    shown = examples(name)
    assert len(shown) >= 2
    assert set(shown) <= written()


def test_the_changelog_record_shown_is_one_that_kafka_streams_wrote() -> None:
    steps = [step for history in section("stores") for step in history["steps"]]
    records = {record["key"] + (record["value"] or "") for step in steps for record in step["records"]}
    (shown,) = examples("changelogs")
    assert shown in records


def test_the_checkpoint_shown_is_one_that_kafka_streams_wrote() -> None:
    files, _ = page("checkpoints").split("\n## The journal of a relocation\n")
    lines = re.findall(r"^    (\S.*?)(?:  .*)?$", files, re.MULTILINE)
    assert "".join(f"{line}\n" for line in lines) in [
        "".join(sorted(vector["text"].splitlines(keepends=True), key=lambda line: line.count(" ")))
        for vector in section("checkpoint_files")
    ]
