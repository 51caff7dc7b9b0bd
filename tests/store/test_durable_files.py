"""Small files are replaced as a whole, or stay as they were."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateline_store import RetryLaterError
from stateline_store.files.durable_files import create_file, remove_file, replace_file
from support.processes.open_files import open_files


@pytest.mark.parametrize("only_writer", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_with_its_mode_and_no_draft_stays(tmp_path: Path, sync: bool, only_writer: bool) -> None:
    path = tmp_path / "status"
    for content in (b"old", b"new"):
        replace_file(path, content, mode=0o600, sync=sync, only_writer=only_writer)
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (content, 0o600)
    assert os.listdir(tmp_path) == ["status"]


def test_the_umask_has_a_say_in_the_only_writers_files_alone(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "status", b"", mode=0o666, only_writer=True)
        replace_file(tmp_path / "manifest", b"", mode=0o644)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "status": 0o640,
        "manifest": 0o644,
    }


@pytest.mark.parametrize("only_writer", [True, False])
def test_where_the_file_system_refuses_nothing_changes_and_no_draft_stays(tmp_path: Path, only_writer: bool) -> None:
    path = tmp_path / "directory"
    (path / "in it").mkdir(parents=True)
    with pytest.raises(RetryLaterError, match=r"directory cannot be written: .*[Dd]irectory"):
        replace_file(path, b"new", only_writer=only_writer)
    assert os.listdir(tmp_path) == ["directory"]


@pytest.mark.parametrize("refused", ["rename", "fchmod"])
def test_where_the_draft_cannot_be_removed_either_the_first_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def read_only(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in (refused, "unlink"):
        monkeypatch.setattr(os, name, read_only)
    with pytest.raises(RetryLaterError, match="status cannot be written: Read-only file system"):
        replace_file(tmp_path / "status", b"new")
    monkeypatch.undo()
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]


def test_what_a_crash_left_of_the_only_writers_draft_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "offsets.tmp").write_bytes(b"half of something longer")
    replace_file(tmp_path / "offsets", b"new", only_writer=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"offsets": b"new"}


def test_of_many_that_create_a_file_at_once_the_first_ones_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with ThreadPoolExecutor(8) as several:
        list(several.map(lambda n: create_file(path, bytes([n]) * 32, mode=0o600), range(24)))
    first = path.read_bytes()
    create_file(path, b"later", mode=0o600)
    assert path.read_bytes() == first == first[:1] * 32
    assert (path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o600, ["key"])


def test_a_file_is_removed_once_and_its_absence_is_no_error(tmp_path: Path) -> None:
    replace_file(tmp_path / "offsets", b"old")
    for _ in range(2):
        remove_file(tmp_path / "offsets")
    assert os.listdir(tmp_path) == []
