"""A place for temporary files where the system has none."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from stateline.config import temporary
from stateline.config.loading import load_config
from stateline.config.temporary import use_temporary_directory
from stateline_store import ConfigurationError, RetryLaterError


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no directory that can be written. `tmp_path` is made before."""

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_on_a_full_state_disk_a_later_start_may_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:  # a file system that small tests can fill still makes directories
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(temporary, "make_directory", full)
    with pytest.raises(RetryLaterError, match=r"temporary files.*No space left"):
        use_temporary_directory(load_config("app", overrides=[f"state.dir={tmp_path / 'state'}"]))


def test_a_state_directory_that_is_a_file_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigurationError, match=r"temporary files.*Not a directory"):
        use_temporary_directory(load_config("app", overrides=[f"state.dir={tmp_path / 'state'}"]))
