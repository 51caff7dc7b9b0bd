"""`stateline node certificate`: what is made, and what is refused. That nodes take it: `server/test_node_keys.py`."""

from __future__ import annotations

import stat
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from stateline.cli import node
from stateline.config.loading import load_config
from stateline.server.nodes.keys import node_keys
from stateline_store import ConfigurationError, InvalidArgumentError, StatelineError


def made(folder: Path, *arguments: str) -> str:
    """What the command says on standard output."""
    line = ["certificate", *arguments, "--directory", str(folder)]
    done = CliRunner().invoke(node.commands, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_it_prints_are_settings_that_a_node_takes(tmp_path: Path) -> None:
    printed = made(tmp_path / "tls", "machine-1", "--host", "machine-1.example", "--host", "10.0.0.1", "--days", "9")
    config = load_config("app", file=tomllib.loads(printed), overrides=["bootstrap.servers=localhost:9092"])
    assert config.node_name == "machine-1"
    assert node_keys(config) is not None
    shown = x509.load_pem_x509_certificate((tmp_path / "tls" / "machine-1.pem").read_bytes())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["machine-1", "machine-1.example", "10.0.0.1"]
    assert timedelta(days=9) < shown.not_valid_after_utc - shown.not_valid_before_utc < timedelta(days=10)


def test_one_authority_signs_all_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    made(tmp_path / "tls", "one")
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()
    made(tmp_path / "tls", "two")
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority
    files = sorted(path.name for path in (tmp_path / "tls").iterdir())
    assert files == ["ca.key", "ca.pem", "one.key", "one.pem", "two.key", "two.pem"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


@pytest.mark.parametrize("there", ["one.pem", "one.key"])
def test_nothing_is_written_over(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(ConfigurationError, match=rf"{there} is there already: move it away"):
        made(tmp_path, "one")
    assert (tmp_path / there).read_text() == "precious"
    assert not (tmp_path / "one.key").exists() or there == "one.key"


def test_half_an_authority_and_one_that_is_none_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "one")
    other = tmp_path / "other"
    made(other, "one")
    (tmp_path / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(ConfigurationError, match=r"ca\.key is not the key of .*ca\.pem"):
        made(tmp_path, "two")
    (tmp_path / "ca.key").write_text("nothing")
    with pytest.raises(ConfigurationError, match="are no authority"):
        made(tmp_path, "two")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigurationError, match=r"ca\.pem is there and .*ca\.key is not"):
        made(tmp_path, "two")


@pytest.mark.parametrize("arguments", [["a/b"], ["ca"], ["CA"], [""], ["ä"], ["one", "--host", "ä.example"]])
def test_names_that_no_node_can_have_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="is no name"):
        made(tmp_path, *arguments)
    assert not list(tmp_path.glob("one*"))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StatelineError, match="file"):
        made(tmp_path / "file" / "tls", "one")
