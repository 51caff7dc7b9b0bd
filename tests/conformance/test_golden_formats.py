"""The examples of docs/formats.md are bytes that Kafka Streams wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.golden import section

_FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
_HEX_LINE = re.compile(r"^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$")
_OF_STORES = ("## Keys of window and session stores", "## Versioned stores")


def chapter(title: str) -> str:
    text = _FORMATS.read_text()
    assert f"\n{title}\n" in text
    return text.split(f"\n{title}\n")[1].split("\n## ")[0]


def examples(title: str) -> list[str]:
    """The hex of each block of indented lines, comments left out."""
    blocks: list[list[str]] = [[]]
    for line in chapter(title).splitlines():
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


@pytest.mark.parametrize("title", _OF_STORES)
def test_examples_of_stores_are_bytes_of_kafka_streams(title: str) -> None:
    shown = examples(title)
    assert len(shown) >= 2
    assert set(shown) <= written()


def test_the_changelog_record_shown_is_one_that_kafka_streams_wrote() -> None:
    steps = [step for history in section("stores") for step in history["steps"]]
    records = {record["key"] + (record["value"] or "") for step in steps for record in step["records"]}
    (shown,) = examples("## Changelog topics")
    assert shown in records


def test_the_checkpoint_shown_is_one_that_kafka_streams_wrote() -> None:
    lines = re.findall(r"^    (\S.*?)(?:  .*)?$", chapter("## Offset checkpoint files"), re.MULTILINE)
    assert "".join(f"{line}\n" for line in lines) in [
        "".join(sorted(vector["text"].splitlines(keepends=True), key=lambda line: line.count(" ")))
        for vector in section("checkpoint_files")
    ]
