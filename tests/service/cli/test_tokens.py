"""`stateline token`: what it writes, prints and refuses; its pure parts, and the real console script."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stateline.cli.tokens import commands, expiry, new_entry, tokens_file, with_entry, without_entry
from stateline.server.guard.tokens import Tokens, TokensFile, hash_of, read_tokens_file
from stateline_store import ConfigurationError, DoesNotExistError, InvalidArgumentError, UnauthenticatedError
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")
NOW = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def run(*arguments: str, file: Path | None = None) -> str:
    """What a command that succeeds prints on standard output."""
    where = () if file is None else ("--file", str(file))
    done = CliRunner().invoke(commands, [*arguments, *where], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_console_script_prints_a_token_alone_that_a_server_takes(file: Path) -> None:
    options = ["--role", "read", "--stores", "orders, totals", "--expires", "90d", "--file", str(file)]
    done = subprocess.run([SCRIPT, "token", "add", "dashboard", *options], capture_output=True, text=True, check=True)
    token = done.stdout.removesuffix("\n")
    assert "\n" not in token
    assert token not in done.stderr + file.read_text()
    holder = Tokens(file).holder(token)
    assert (holder.name, holder.role, holder.stores) == ("dashboard", "read", frozenset({"orders", "totals"}))
    assert holder.expires_at_s is not None
    assert file.stat().st_mode & 0o777 == 0o640
    wrong = subprocess.run(
        [SCRIPT, "token", "remove", "x", "--file", str(file)], capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: There is no token 'x'; there are: dashboard.\n"


def test_the_file_is_what_the_documents_show(file: Path) -> None:
    token = run("add", "dashboard", "--stores", "orders", file=file).strip()
    assert json.loads(file.read_text()) == {
        "tokens": [
            {
                "name": "dashboard",
                "sha256": hash_of(token).hex(),
                "role": "read",
                "stores": ["orders"],
                "expires_at": None,
            }
        ]
    }


def test_a_token_that_was_removed_is_nobodys_and_the_others_stay(file: Path) -> None:
    first, second = (run("add", name, file=file).strip() for name in ("a", "b"))
    tokens = Tokens(file)
    run("remove", "a", file=file)
    assert tokens.holder(second).name == "b"
    with pytest.raises(UnauthenticatedError):
        tokens.holder(first)


def test_the_list_has_all_but_tokens_and_hashes(file: Path) -> None:
    token = run("add", "some", "--stores", "orders,totals", "--expires", "2999-01-31", file=file).strip()
    run("add", "root", "--role", "admin", file=file)
    content = json.loads(file.read_text())
    content["tokens"][1]["expires_at"] = "2020-01-01T00:00:00Z"
    file.write_text(json.dumps(content))
    text = run("list", file=file)
    assert [line.split() for line in text.splitlines()] == [
        ["name", "role", "stores", "expires_at", "expired"],
        ["some", "read", "orders,totals", "2999-01-31T00:00:00+00:00", "no"],
        ["root", "admin", "*", "2020-01-01T00:00:00+00:00", "yes"],
    ]
    rows = json.loads(run("list", "--json", file=file))
    assert [(row["name"], row["stores"], row["expired"]) for row in rows] == [
        ("some", ["orders", "totals"], False),
        ("root", "*", True),
    ]
    assert token not in text
    assert hash_of(token).hex() not in text


def test_the_file_is_the_option_else_the_environment_else_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"Which file\? Name it with --file"):
        tokens_file(None)
    (tmp_path / "stateline.toml").write_text('[server]\ntokens.file = "by-settings.json"\n')
    run("add", "a")
    assert (tmp_path / "by-settings.json").exists()
    monkeypatch.setenv("STATELINE_SERVER_TOKENS_FILE", "by-environment.json")
    run("add", "a")
    assert (tmp_path / "by-environment.json").exists()
    run("add", "a", file=tmp_path / "by-option.json")
    assert (tmp_path / "by-option.json").exists()
    (tmp_path / "stateline.toml").write_text("no toml")
    with pytest.raises(ConfigurationError, match="cannot be read as TOML"):
        tokens_file(None)


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    run("add", "a", file=file)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    run("add", "b", file=link)
    assert link.is_symlink()
    assert [entry.name for entry in read_tokens_file(file).tokens] == ["a", "b"]


def test_commands_at_once_lose_nothing(file: Path) -> None:
    names = [f"t{number}" for number in range(4)]
    command = [str(SCRIPT), "token", "add", "--file", str(file)]
    adding = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in names]
    assert [process.wait(timeout=HANGING_S) for process in adding] == [0] * len(names)
    assert sorted(entry.name for entry in read_tokens_file(file).tokens) == names


def test_a_broken_file_is_not_written_over(file: Path) -> None:
    file.write_text("{")
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is no tokens file"):
        run("add", "a", file=file)
    assert file.read_text() == "{"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none cannot be opened: No such file or directory"):
        run("add", "a", file=tmp_path / "none" / "tokens.json")


# Pure parts


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("30m", "2026-11-21T12:30:00+00:00"),
        ("12h", "2026-11-22T00:00:00+00:00"),
        ("90d", "2027-02-19T12:00:00+00:00"),
        ("8w", "2027-01-16T12:00:00+00:00"),
        ("2027-01-31", "2027-01-31T00:00:00+00:00"),
        ("2027-01-31T12:00", "2027-01-31T12:00:00+00:00"),
        ("2027-01-31T12:00+02:00", "2027-01-31T10:00:00+00:00"),
        ("2027-01-31T12:00Z", "2027-01-31T12:00:00+00:00"),
    ],
)
def test_a_time_is_after_a_while_or_at_an_instant(text: str, when: str) -> None:
    assert expiry(text, NOW).isoformat() == when


@pytest.mark.parametrize(
    "text",
    ["", "soon", "90", "1.5d", "-1d", "90 d", "9999999999d", "2027-13-01", "2026-11-21", "9999-12-31T23:59-14:00"],
)
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^--expires "):
        expiry(text, NOW)


@pytest.mark.parametrize(
    ("name", "role", "stores", "why"),
    [
        ("a b", "read", None, "name is text of "),
        ("", "read", None, "name is text of "),
        ("a", "read", "", "has an empty name"),
        ("a", "read", "x,,y", "has an empty name"),
        ("a", "admin", "x", "an admin reads every store"),
    ],
)
def test_what_makes_no_entry_is_refused(name: str, role: str, stores: str | None, why: str) -> None:
    assert role in ("read", "admin")
    with pytest.raises(InvalidArgumentError, match=why):
        new_entry(name, bytes(32), "admin" if role == "admin" else "read", stores, None, NOW)


def test_a_name_is_there_once_and_only_what_is_there_is_removed() -> None:
    empty = TokensFile(tokens=())
    entry = new_entry("a", bytes(32), "read", None, None, NOW)
    one = with_entry(empty, entry)
    with pytest.raises(InvalidArgumentError, match="There is a token 'a' already"):
        with_entry(one, entry)
    assert without_entry(one, "a") == empty
    with pytest.raises(DoesNotExistError, match="There is no token 'a'; there are: none"):
        without_entry(empty, "a")
