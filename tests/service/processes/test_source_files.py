"""Changed source files are told once, when nobody is writing them any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateline.processes.renewal import LOOK_INTERVAL_S, SourceFiles


class Watched:
    """Some files under a clock that goes on as it is told."""

    def __init__(self, folder: Path) -> None:
        self.app, self.settings = folder / "app.py", folder / "stateline.toml"
        self.app.write_text("one")
        self._now_s = 0.0
        self.files = SourceFiles(lambda: self._now_s)
        self.files.watch([self.app, self.settings])

    def look(self) -> list[str]:
        self._now_s += LOOK_INTERVAL_S
        return [path.name for path in self.files.changed()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_nothing_is_told_while_nothing_changes(watched: Watched) -> None:
    assert [watched.look(), watched.look()] == [[], []]


def test_a_change_is_told_once_and_not_before_it_rests(watched: Watched) -> None:
    watched.app.write_text("two and")
    assert watched.look() == []
    watched.app.write_text("two and more")
    assert watched.look() == []
    assert watched.look() == ["app.py"]
    assert watched.look() == []


def test_nothing_is_looked_at_more_often_than_the_interval(watched: Watched) -> None:
    watched.app.write_text("changed")
    watched.look()
    assert watched.files.changed() == []
    assert watched.look() == ["app.py"]


def test_an_editor_that_puts_another_file_in_its_place_is_a_change(watched: Watched) -> None:
    stat = watched.app.stat()
    other = watched.app.with_suffix(".new")
    other.write_text("two")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as long, and as old: only the inode is another
    watched.app.unlink()
    assert watched.look() == []
    other.rename(watched.app)
    assert watched.look() == []
    assert watched.look() == ["app.py"]


def test_a_file_that_is_deleted_and_one_that_is_made_are_changes(watched: Watched) -> None:
    watched.app.unlink()
    watched.settings.write_text("")
    watched.look()
    assert watched.look() == ["app.py", "stateline.toml"]


def test_what_changes_while_it_is_loaded_is_still_to_be_told(watched: Watched) -> None:
    watched.app.write_text("two")
    watched.app.write_text("more than two")
    watched.files.watch([watched.app, watched.settings])  # loaded from something in between
    assert watched.look() == ["app.py"]


def test_a_module_that_was_missing_is_noticed_where_new_ones_are_looked_for(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    watched.look()
    assert watched.look() == []
    (tmp_path / "helpers.py").unlink()
    watched.files.watch([watched.app], with_new=True)
    (tmp_path / "helpers.py").write_text("")
    watched.look()
    assert watched.look() == ["helpers.py"]


def test_a_module_of_a_new_package_is_noticed_too(watched: Watched, tmp_path: Path) -> None:
    watched.files.watch([watched.app], with_new=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "h.py").write_text("(")
    watched.look()
    assert watched.look() == ["h.py"]
    (tmp_path / "sub" / "h.py").write_text("mended")
    watched.look()
    assert watched.look() == ["h.py"]
