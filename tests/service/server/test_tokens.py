"""The tokens file: what it may say, whose a token is, and what happens while the file changes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stateline.server.guard.tokens import Tokens, hash_of, new_token, read_tokens
from stateline_store import ConfigurationError, UnauthenticatedError

SECRET = new_token()
OTHER = new_token()


def entry(name: str, token: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hash_of(token).hex(), **members}


def write(path: Path, *entries: dict[str, Any]) -> Path:
    """Replace the file as a careful editor does."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"tokens": entries}))
    draft.chmod(0o600)
    draft.rename(path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens.json", entry("dashboard", SECRET, stores=["orders"]))


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Tokens(path)
    assert str(raised.value).startswith(f"server.tokens.file = {str(path)!r} ")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_token_is_256_random_bits_that_a_header_takes() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == len("stateline_") + 43 and token.isascii() and token.isprintable() for token in tokens)


def test_the_file_has_no_token_but_its_hash(file: Path) -> None:
    assert SECRET not in file.read_text()
    assert Tokens(file).holder(SECRET).name == "dashboard"


@pytest.mark.parametrize(
    "wrong",
    [OTHER, "", SECRET[:-1], SECRET + "A", SECRET.upper(), hash_of(SECRET).hex()],
    ids=["another", "none", "shorter", "longer", "in capitals", "its hash"],
)
def test_a_wrong_token_is_nobodys(file: Path, wrong: str) -> None:
    with pytest.raises(UnauthenticatedError) as raised:
        Tokens(file).holder(wrong)
    assert not wrong or wrong not in str(raised.value)


def test_a_holder_reads_the_stores_that_are_listed_and_no_other(tmp_path: Path) -> None:
    everything, nothing = new_token(), new_token()
    path = write(
        tmp_path / "t.json",
        entry("some", SECRET, stores=["orders", "totals"]),
        entry("all", OTHER),
        entry("root", everything, role="admin", stores="*"),
        entry("none", nothing, stores=[]),
    )
    tokens = Tokens(path)
    may = {t.name: [t.may_read(s) for s in ("orders", "totals", "x")] for t in map(tokens.holder, (SECRET, OTHER))}
    assert may == {"some": [True, True, False], "all": [True, True, True]}
    assert tokens.holder(everything).may_read("to come")
    assert not tokens.holder(nothing).may_read("orders")


def test_a_token_is_valid_until_the_moment_it_expires(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", entry("short", SECRET, expires_at="2027-01-31T01:00:00+01:00"))
    now_s = 1_801_353_599.9  # 2027-01-30T23:59:59.9Z
    tokens = Tokens(path, lambda: now_s)
    holder = tokens.holder(SECRET)
    assert tokens.is_valid(holder)
    now_s = 1_801_353_600.0
    with pytest.raises(UnauthenticatedError, match="expired"):
        tokens.holder(SECRET)
    assert not tokens.is_valid(holder)


def test_a_change_of_the_file_holds_at_once(file: Path) -> None:
    tokens = Tokens(file)
    before = tokens.holder(SECRET)
    write(file, entry("dashboard", SECRET, stores=["orders"]), entry("dashboard-2", OTHER))
    assert tokens.holder(OTHER).name == "dashboard-2"
    assert tokens.is_valid(before)
    write(file, entry("dashboard-2", OTHER))
    with pytest.raises(UnauthenticatedError):
        tokens.holder(SECRET)
    assert not tokens.is_valid(before)


def test_a_token_whose_stores_have_changed_is_another_one(file: Path) -> None:
    tokens = Tokens(file)
    before = tokens.holder(SECRET)
    write(file, entry("dashboard", SECRET, stores=["totals"]))
    assert not tokens.is_valid(before)
    assert not tokens.holder(SECRET).may_read("orders")


def test_a_file_written_in_place_is_seen_too(file: Path) -> None:
    tokens = Tokens(file)
    file.write_text(json.dumps({"tokens": []}))
    with pytest.raises(UnauthenticatedError):
        tokens.holder(SECRET)


@pytest.mark.parametrize("harm", ["broken", "gone", "writable"])
def test_a_file_that_breaks_leaves_the_last_tokens_and_is_logged_once(
    file: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    tokens = Tokens(file)
    if harm == "gone":
        file.unlink()
    elif harm == "writable":
        file.chmod(0o666)
    else:
        file.write_text('{"tokens": [')
    with caplog.at_level(logging.INFO):
        assert [tokens.holder(SECRET).name for _ in range(3)] == ["dashboard"] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "The tokens that were read last stay valid" in caplog.text
    write(file, entry("new", OTHER))
    assert tokens.holder(OTHER).name == "new"


def test_a_link_to_another_file_is_a_change(file: Path, tmp_path: Path) -> None:
    """As Kubernetes replaces the files of a secret."""
    other = write(tmp_path / "other.json", entry("new", OTHER))
    link = tmp_path / "link"
    link.symlink_to(file)
    tokens = Tokens(link)
    draft = tmp_path / "draft"
    draft.symlink_to(other)
    os.rename(draft, link)
    assert tokens.holder(OTHER).name == "new"


def test_without_the_file_the_server_does_not_start(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "none.json")
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert f"(mode {mode:04o}): chmod go-w it" in refusal(file)


def test_a_file_that_others_may_read_is_taken(file: Path) -> None:
    file.chmod(0o644)
    assert len(read_tokens(file)) == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "it is not JSON: "),
        ("[]", "it is a list, and should be an object with tokens"),
        ("{}", "tokens is missing, and should be a list of objects"),
        ('{"tokens": {}}', "tokens is an object, and should be a list of objects"),
        ('{"tokens": [], "more": 1}', "more is not known here"),
        ('{"tokens": [{"name": "a"}]}', "tokens.0.sha256 is missing, and should be 64 hexadecimal digits"),
        ('{"tokens": [{"name": 5}]}', "tokens.0.name is a number, and should be text of 1 to 200 letters"),
        ('{"tokens": [{"name": "a", "sha256": "abc"}]}', "tokens.0.sha256 is text of 3 characters, and should be 64"),
        ({"tokens": [entry("", SECRET)]}, "tokens.0.name is text of 0 characters, and should be text of 1 to 200"),
        ({"tokens": [entry("a b", SECRET)]}, "tokens.0.name is text of 3 characters, and should be text of 1 to 200"),
        ({"tokens": [5]}, "tokens.0 is a number, and should be an object with name, sha256"),
        ({"tokens": [entry("a", SECRET, role="write")]}, 'tokens.0.role is text of 5 characters, and should be "read"'),
        ({"tokens": [entry("a", SECRET, stores="x")]}, 'tokens.0.stores is text of 1 characters, and should be "*" or'),
        ({"tokens": [entry("a", SECRET, stores=["x", 1])]}, "tokens.0.stores.1 is a number, and should be the name of"),
        ({"tokens": [entry("a", SECRET, role="admin", stores=["x"])]}, "tokens.0: an admin reads every store"),
        ({"tokens": [entry("a", SECRET, expires_at="2027-01-31T00:00:00")]}, "should be null or a time with its zone"),
        ({"tokens": [entry("a", SECRET, expires_at=[])]}, "tokens.0.expires_at is a list, and should be null"),
        ({"tokens": [entry("a", SECRET, expires_at="soon")]}, "tokens.0.expires_at is text of 4 characters, and"),
        ({"tokens": [entry("a", SECRET, store=["x"])]}, "tokens.0.store is not known here"),
        ({"tokens": [entry("a", SECRET), entry("a", OTHER)]}, "two tokens have the same name"),
        ({"tokens": [entry("a", SECRET), entry("b", SECRET)]}, "two tokens have the same sha256"),
    ],
    ids=lambda each: None if isinstance(each, str) else "entries",  # tokens differ from run to run
)
def test_a_file_of_another_shape_is_refused_with_the_place(tmp_path: Path, content: object, why: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)
    assert why in refusal(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a", "sha256": SECRET},
        {"name": SECRET + " ", "sha256": "abc"},
        {"name": "a", "sha256": hash_of(SECRET).hex(), "role": SECRET},
        {"name": "a", "sha256": hash_of(SECRET).hex(), "stores": SECRET},
        {"name": "a", "sha256": hash_of(SECRET).hex(), "expires_at": SECRET},
        {"name": "a", "sha256": hash_of(SECRET).hex(), SECRET: 1},
        {"name": "a", hash_of(SECRET).hex(): 1},
        SECRET,
    ],
    ids=range(8),
)
def test_a_token_or_a_hash_that_stands_in_the_wrong_place_is_not_shown(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"tokens": [wrong]}))
    path.chmod(0o600)
    said = refusal(path)
    assert SECRET not in said
    assert hash_of(SECRET).hex() not in said
