"""Certificates that are made and renewed, and what is refused. That nodes take them: `server/test_certificates.py`."""

from __future__ import annotations

import stat
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from stateline.cli.nodes import commands as node
from stateline.cli.nodes.certificates import make_authority, make_certificate
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


def renewed(folder: Path, *arguments: str) -> str:
    """The output of `renew` on both streams."""
    line = ["renew", *arguments, "--directory", str(folder)]
    done = CliRunner().invoke(node.certificates, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shown(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())


def test_renewal_signs_every_node_again_for_its_names_and_keeps_keys_and_rights(tmp_path: Path) -> None:
    made(tmp_path, "one", "--host", "10.0.0.1", "--days", "9")
    made(tmp_path, "two", "--days", "9")
    (tmp_path / "one.pem").chmod(0o640)
    before, old = files(tmp_path), shown(tmp_path, "one")
    said = renewed(tmp_path, "--days", "100")
    changed = {name for name, content in files(tmp_path).items() if before.get(name) != content}
    assert changed == {"one.pem", "two.pem"}
    new = shown(tmp_path, "one")
    assert timedelta(days=90) < new.not_valid_after_utc - old.not_valid_after_utc
    assert new.subject == old.subject
    assert new.serial_number != old.serial_number
    kinds = (x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.BasicConstraints)
    for kind in kinds:
        assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {**dict.fromkeys(before, 0o600), "one.pem": 0o640}
    assert f"{tmp_path / 'one'}.pem is valid until {new.not_valid_after_utc.date()}." in said
    assert "Copy each .pem over the node's own file." in said


def test_renewal_of_one_node_with_a_new_key_leaves_the_others(tmp_path: Path) -> None:
    for name in ("one", "two"):
        printed = made(tmp_path, name)
    before = files(tmp_path)
    assert "Copy each .pem and .key over" in renewed(tmp_path, "two", "--new-key")
    changed = {name for name, content in files(tmp_path).items() if before.get(name) != content}
    assert changed == {"two.pem", "two.key"}
    assert stat.S_IMODE((tmp_path / "two.key").stat().st_mode) == 0o600
    config = load_config("app", file=tomllib.loads(printed), overrides=["bootstrap.servers=localhost:9092"])
    assert node_keys(config) is not None


def test_renewal_says_what_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no certificates of nodes"):
        renewed(tmp_path)
    made(tmp_path, "one")
    made(tmp_path / "other", "one")
    before = files(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"two\.pem cannot be read: No such file"):
        renewed(tmp_path, "two")
    with pytest.raises(InvalidArgumentError, match="is no name"):
        renewed(tmp_path, "ca")
    (tmp_path / "one.pem").write_bytes(before["one.pem"])
    with pytest.raises(ConfigurationError, match=r"one\.pem is not renewed: .* has signed"):
        renewed(tmp_path)
    (tmp_path / "other" / "ca.key").unlink()
    with pytest.raises(ConfigurationError, match=r"ca\.key cannot be read"):
        renewed(tmp_path / "other")
    assert files(tmp_path / "other") == {name: each for name, each in before.items() if name != "ca.key"}


def test_an_authority_that_has_expired_signs_nothing(tmp_path: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=3651)
    make_authority(tmp_path, then)
    make_certificate(tmp_path, "one", (), then, timedelta(days=9))
    with pytest.raises(ConfigurationError, match=r"ca\.pem has expired at .* UTC"):
        renewed(tmp_path, "one")
    with pytest.raises(ConfigurationError, match=r"ca\.pem has expired at .* UTC"):
        made(tmp_path, "two")
    assert not (tmp_path / "two.pem").exists()


@pytest.mark.parametrize("arguments", [["a/b"], ["ca"], ["CA"], [""], ["ä"], ["one", "--host", "ä.example"]])
def test_names_that_no_node_can_have_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="is no name"):
        made(tmp_path, *arguments)
    assert not list(tmp_path.glob("one*"))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StatelineError, match="file"):
        made(tmp_path / "file" / "tls", "one")
