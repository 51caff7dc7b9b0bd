"""`.checkpoint` and `.position` files: what is written, what is read, and what a crash leaves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateline_store import DamagedDataError, InvalidArgumentError, Position, RetryLaterError, TopicPartition
from stateline_store.files.offset_checkpoint import (
    OFFSET_UNKNOWN,
    read_offset_checkpoint,
    read_position,
    write_offset_checkpoint,
)

A, B, C = (TopicPartition("topic", partition) for partition in range(3))
TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)),
    st.just(OFFSET_UNKNOWN) | st.integers(0, 2**63 - 1),
    max_size=6,
)
WRITER = """
import sys; from pathlib import Path
from stateline_store import TopicPartition
from stateline_store.files.offset_checkpoint import write_offset_checkpoint
write_offset_checkpoint(Path(sys.argv[1]), {TopicPartition("topic", 0): int(offset) for offset in sys.argv[2:]})
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".checkpoint"


# -- what is written ------------------------------------------------------------------------------------


@given(OFFSETS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_what_was_written_is_read(path: Path, offsets: dict[TopicPartition, int]) -> None:
    write_offset_checkpoint(path, offsets)
    assert read_offset_checkpoint(path) == offsets
    assert path.exists() is bool(offsets)


def test_the_text_is_version_number_and_a_line_per_partition_in_order(path: Path) -> None:
    write_offset_checkpoint(path, {C: 2, TopicPartition("other", 10): OFFSET_UNKNOWN, B: 1})
    assert path.read_bytes() == b"0\n3\nother 10 -4\ntopic 1 1\ntopic 2 2\n"


def test_no_offsets_delete_the_file_and_do_not_make_one(path: Path) -> None:
    write_offset_checkpoint(path, {})
    assert not path.exists()
    assert read_offset_checkpoint(path) == {}
    write_offset_checkpoint(path, {A: 1})
    write_offset_checkpoint(path, {})
    assert not path.exists()
    assert read_offset_checkpoint(path) == {}


@pytest.mark.parametrize("offset", [-1, -2, -3, -5, 2**63])
def test_what_is_no_offset_is_refused_and_the_old_file_stays(path: Path, offset: int) -> None:
    write_offset_checkpoint(path, {A: 7})
    with pytest.raises(InvalidArgumentError, match=rf"{offset} is not an offset of topic-1"):
        write_offset_checkpoint(path, {A: 0, B: offset, C: 2})
    assert read_offset_checkpoint(path) == {A: 7}
    assert os.listdir(path.parent) == [".checkpoint"]


@pytest.mark.parametrize("partition", [("", 0), ("a b", 0), ("a\nb", 0), ("a\tb", 0), ("t", -1), ("t", 2**31)])
def test_what_does_not_fit_into_a_line_is_refused(path: Path, partition: tuple[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit into a checkpoint"):
        write_offset_checkpoint(path, {TopicPartition(*partition): 1})
    assert not path.exists()


def test_the_file_is_closed_to_strangers(path: Path) -> None:
    write_offset_checkpoint(path, {A: 1})
    assert stat.S_IMODE(path.stat().st_mode) & ~0o640 == 0


# -- what is read ---------------------------------------------------------------------------------------


def test_offsets_that_are_none_are_skipped_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("0\n3\ntopic 0 -1\ntopic 1 -4\ntopic 2 5\n")
    assert read_offset_checkpoint(path) == {B: OFFSET_UNKNOWN, C: 5}
    assert "offset -1 of topic-0 is skipped" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it ends after line 0"),
        (b"0\n", "it ends after line 1"),
        (b"-1\n1\ntopic 0 5\n", "line 1 says version -1, and only version 0 is known"),
        (b"zero\n1\ntopic 0 5\n", "line 1 has b'zero' where a version stands"),
        (b"0\n2\ntopic 0 5\n", "line 2 says 2 entries, and 1 different ones follow"),
        (b"0\n2\ntopic 0 5\ntopic 0 6\n", "line 2 says 2 entries, and 1 different ones follow"),
        (b"0\n1\ntopic 0 5\ntopic 1 6\n", "line 2 says 1 entries, and 2 different ones follow"),
        (b"0\n2\ntopic 0 5\ntopic 1\n", r"line 4 is b'topic 1', not a topic, a partition and an offset"),
        (b"0\n1\ntopic 0 5 5\n", "line 3 is"),
        (b"0\n1\n\xff\xfe 0 5\n", "line 3 is"),
        (b"0\n1\ntopic 1_0 5\n", "line 3 has b'1_0' where a partition stands"),
        (b"0\n1\ntopic -1 5\n", "line 3 has partition -1"),
        (b"0\n1\ntopic 0 \xd9\xa1\n", "where an offset stands"),  # a digit, but not one of ours
        (b"0\n1\ntopic 0 9223372036854775808\n", "where an offset stands"),
        (b"0\n1\ntopic 0 5\n" + bytes(40), "line 4 is"),  # zeros at the end, as some file systems leave after a crash
    ],
)
def test_another_text_is_damage_that_names_file_line_and_what_to_do(path: Path, text: bytes, said: str) -> None:
    path.write_bytes(text)
    with pytest.raises(DamagedDataError, match=said) as told:
        read_offset_checkpoint(path)
    assert str(told.value).startswith(f"{path} is damaged: ")
    assert "Delete the file" in str(told.value)
    assert path.read_bytes() == text


def test_a_position_file_becomes_a_position_without_unknown_offsets(tmp_path: Path) -> None:
    path = tmp_path / "s.position"
    assert read_position(path) == Position()
    path.write_text("0\n4\norders 0 2\norders 1 300\norders 2 -4\nplanes 0 0\n")
    assert read_position(path) == Position({"orders": {0: 2, 1: 300}, "planes": {0: 0}})
    path.write_text("0\n1\norders 0\n")
    with pytest.raises(DamagedDataError, match=r"s\.position is damaged: line 3 .*Delete the file: queries"):
        read_position(path)


# -- what goes wrong ------------------------------------------------------------------------------------


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / ".checkpoint"
    with pytest.raises(RetryLaterError, match=r"missing/\.checkpoint cannot be written: No such file or directory"):
        write_offset_checkpoint(path, {A: 0})
    assert read_offset_checkpoint(path) == {}
    write_offset_checkpoint(path, {})


def test_a_full_disk_is_named_and_the_old_offsets_stay(path: Path) -> None:
    write_offset_checkpoint(path, {A: 7})
    path.with_name(".checkpoint.tmp").symlink_to("/dev/full")  # each write to it finds no space
    with pytest.raises(RetryLaterError, match=r"\.checkpoint cannot be written: No space left on device\. Free some"):
        write_offset_checkpoint(path, {A: 8})
    assert read_offset_checkpoint(path) == {A: 7}
    assert os.listdir(path.parent) == [".checkpoint"]
    write_offset_checkpoint(path, {A: 8})
    assert read_offset_checkpoint(path) == {A: 8}


def test_a_file_that_cannot_be_read_is_not_taken_for_an_absent_one(tmp_path: Path) -> None:
    (tmp_path / "0_0").touch()
    for path in (tmp_path, tmp_path / "0_0" / ".checkpoint"):
        with pytest.raises(RetryLaterError, match=f"{path} cannot be read"):
            read_offset_checkpoint(path)


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (".checkpoint:draft-created", {A: 7}),
        (".checkpoint:draft-written", {A: 7}),
        (".checkpoint:renamed", {A: 8}),
    ],
)
def test_a_crash_leaves_the_old_offsets_or_the_new_ones(path: Path, step: str, left: dict[TopicPartition, int]) -> None:
    write_offset_checkpoint(path, {A: 7})
    assert write_and_crash(path, step, "8") == -9
    assert read_offset_checkpoint(path) == left
    write_offset_checkpoint(path, {A: 9})
    assert read_offset_checkpoint(path) == {A: 9}
    assert os.listdir(path.parent) == [".checkpoint"]


def test_a_crash_after_the_removal_leaves_no_file(path: Path) -> None:
    write_offset_checkpoint(path, {A: 7})
    assert write_and_crash(path, ".checkpoint:removed") == -9
    assert read_offset_checkpoint(path) == {}


def write_and_crash(path: Path, step: str, *offsets: str) -> int:
    """Write in a process that dies at this step; its exit status."""
    command = [sys.executable, "-c", WRITER, str(path), *offsets]
    return subprocess.run(command, env=os.environ | {"STATELINE_CRASH_AT": step}, check=False).returncode
