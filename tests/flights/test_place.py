"""A demo wipes its own directory and nothing else, and does not start beside another one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flights.place import free_port, fresh_directory
from stateline_store import ConfigurationError, LockedError


def test_a_demo_begins_with_an_empty_directory(tmp_path: Path) -> None:
    with fresh_directory(tmp_path / "new" / "demo"):
        (tmp_path / "new" / "demo" / "log.db").touch()
        (tmp_path / "new" / "demo" / "flights" / "0_0").mkdir(parents=True)
    with fresh_directory(tmp_path / "new" / "demo"):
        assert [path.name for path in (tmp_path / "new" / "demo").iterdir()] == ["demo.lock"]


def test_what_makes_sparks_start_quicker_is_kept_for_the_next_demo(tmp_path: Path) -> None:
    with fresh_directory(tmp_path):
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / "spark.jsa").touch()
    with fresh_directory(tmp_path):
        assert (tmp_path / ".cache" / "spark.jsa").exists()


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="--state-dir"), fresh_directory(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_demo_in_the_directory_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    with fresh_directory(tmp_path):
        (tmp_path / "log.db").touch()
        with pytest.raises(LockedError, match="is running") as raised, fresh_directory(tmp_path):
            pass
        assert (tmp_path / "log.db").exists()
    assert "\n" not in str(raised.value)


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: something listens there") as raised:
            free_port("127.0.0.1", port)
        assert "\n" not in str(raised.value)
        assert "--port 8080, or make demo PORT=8080" in str(raised.value)
    assert free_port("127.0.0.1", 0) > 0


def test_a_directory_that_cannot_be_made_is_refused_with_the_way_out() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"/proc/x cannot be made .*--state-dir"),
        fresh_directory(Path("/proc/x")),
    ):
        pass
