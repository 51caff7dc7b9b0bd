"""Which state directories are refused before anything is begun."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from stateline.config.directory import check_state_directory, check_writable, held_by_node
from stateline.config.loading import load_config
from stateline.log.embedded_file import LogFile
from stateline_store.errors import ConfigurationError

NOBODY = 65534


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that an ordinary user can reach, not in `tmp_path`, whose parents other tests use at the same time. The
    test is such a user while it runs, because root may read anything."""
    with tempfile.TemporaryDirectory(prefix="sl-") as made:
        path = Path(made)
        path.chmod(0o777)
        user = os.geteuid()
        os.seteuid(user or NOBODY)
        try:
            yield path
        finally:
            os.seteuid(user)


def check(state_dir: Path) -> None:
    check_state_directory(load_config("flights", overrides=[f"state.dir={state_dir}"]))


def refusal(state_dir: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check(state_dir)
    message = str(caught.value)
    assert message.startswith(f"state.dir = {str(state_dir)!r} (from --set) cannot be used: ")
    return message


def test_a_directory_and_one_still_to_be_made_are_fine(tmp_path: Path) -> None:
    check(tmp_path)
    check(tmp_path / "not" / "there")
    (tmp_path / "flights").mkdir()
    check(tmp_path)
    assert not (tmp_path / "not").exists()


def test_a_file_anywhere_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is a file" in refusal(tmp_path / "file")
    assert f"{tmp_path / 'file'} is a file" in refusal(tmp_path / "file" / "below")
    (tmp_path / "flights").write_text("")
    assert f"{tmp_path / 'flights'} is a file" in refusal(tmp_path)


def test_a_directory_closed_to_this_user_is_named(open_path: Path) -> None:
    closed = open_path / "closed"
    (closed / "flights").mkdir(parents=True)
    closed.chmod(0)
    try:
        assert f"{closed / 'flights'} cannot be read (Permission denied)" in refusal(closed)
        closed.chmod(0o700)
        (closed / "flights").chmod(0)
        assert f"this user may not read {closed / 'flights'}" in refusal(closed)
        (closed / "flights").chmod(0o700)
        closed.chmod(0o500)
        assert f"this user may not write to {closed}" in refusal(closed / "deeper" / "still")
    finally:
        closed.chmod(0o700)


def test_a_directory_that_can_be_read_and_not_written_is_refused_where_a_start_is_checked(open_path: Path) -> None:
    config = load_config("flights", overrides=[f"state.dir={open_path}"])
    check_writable(config)
    (open_path / "flights").mkdir()
    (open_path / "flights").chmod(0o500)
    check_state_directory(config)
    with pytest.raises(ConfigurationError, match=f"this user may not write to {open_path / 'flights'}"):
        check_writable(config)
    assert list((open_path / "flights").iterdir()) == []


def test_an_embedded_log_that_may_not_be_written_says_what_to_do(open_path: Path) -> None:
    path = open_path / "log.db"
    LogFile(path, 100).close()
    path.chmod(0o400)
    said = f"The embedded log {path} cannot be written .*: make the file and its folder writable"
    with closing(LogFile(path, 100)) as file, pytest.raises(ConfigurationError, match=said), file.write() as sql:
        sql.execute("DELETE FROM topics")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        LogFile(open_path, 100)


def held(state_dir: Path, *settings: str) -> AbstractContextManager[None]:
    given = [f"state.dir={state_dir}", *settings]
    return held_by_node(load_config("flights", environment={}, overrides=given))


def test_two_nodes_of_different_names_cannot_have_one_directory_at_once(tmp_path: Path) -> None:
    kafka = "bootstrap.servers=localhost:9092"
    (tmp_path / "flights").mkdir()
    with held(tmp_path, kafka, "node.name=one"), held(tmp_path, kafka, "node.name=one"):
        with pytest.raises(ConfigurationError, match="is the state directory of node 'one', which runs: 'two' needs"):
            held(tmp_path, kafka, "node.name=two").__enter__()
        with held(tmp_path, "node.name=two"):
            pass  # the embedded log has no nodes
    with held(tmp_path, kafka, "node.name=two"):
        assert (tmp_path / "flights" / ".node").read_text() == "two\n"
