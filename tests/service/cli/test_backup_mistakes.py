"""Mistakes in commands that read backups or a server: each error names the option, and what to do."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stateline.cli.main import main
from stateline.cli.state.snapshot import server_at
from stateline.client import backup
from stateline.client.lean.client import LeanRequest
from stateline_store import InvalidArgumentError, NotReadyError
from support.written_backups import write_backup

NOBODY = 65534
FORMATS = pytest.mark.parametrize("form", ["parquet", "delta"])
Said = Callable[..., str]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with the backups `b`, that an ordinary user can reach, not in `tmp_path`, whose parents are closed."""
    with tempfile.TemporaryDirectory(prefix="sl-") as made:
        write_backup(Path(made) / "w", f"{made}/b", "totals", {0: [(b"a", b"1")]})
        for path in (Path(made), *Path(made).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(made)


@pytest.fixture
def said(place: Path, capfd: pytest.CaptureFixture[str]) -> Said:
    """Run a command that fails with this code, and return its error."""

    def run(*words: str, code: int = 2) -> str:
        ended = main([word.format(place) for word in words])
        told = capfd.readouterr()
        assert ended == code, told
        assert told.err.count("\n") == 1, told.err
        return told.err

    return run


def as_nobody(said: Said, *words: str) -> str:
    """The same as an ordinary user, because root may write anywhere. All modules are loaded before."""
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        return said(*words)
    finally:
        os.seteuid(user)


@FORMATS
@pytest.mark.parametrize("folder", ["new", "there", "closed/new"])
def test_a_folder_that_an_export_may_not_write_to_is_named(place: Path, said: Said, form: str, folder: str) -> None:
    words = ("export", "totals", "--backup", "{0}/b", "--format", form, "--to")
    assert main([word.format(place) for word in (*words, "{0}/there")]) == 0
    (place / "closed").mkdir(mode=0o700)
    told = as_nobody(said, *words, f"{{0}}/{folder}").replace(f"{place}", "HERE")
    assert told.startswith(f"error: --to=HERE/{folder}/totals cannot be used: ")
    assert "Permission denied" in told
    assert told.endswith("Give this user the right to it, or choose another folder.\n")


def test_a_closed_location_is_told_with_its_option(place: Path, said: Said) -> None:
    assert main(["backup", "list", "--backup", f"{place}/b"]) == 0
    (place / "closed").mkdir(mode=0o700)
    told = as_nobody(said, "backup", "list", "--backup", "{0}/closed/b")
    assert told.startswith(f"error: backup={place}/closed/b cannot be used: ")
    assert "state.dir" not in told


@pytest.mark.parametrize("words", [("backup", "list"), ("export", "totals", "--to", "{0}/x")])
def test_folders_without_backups_are_no_applications(place: Path, said: Said, words: tuple[str, ...]) -> None:
    told = said(*words, "--backup", "{0}")
    assert told == (
        f"error: {place} has no backups. It has the folders b, w. Give the backup.location of the application (on the "
        "command line: --backup).\n"
    )
    assert "It has the folders backups, files" in said(*words, "--backup", "{0}/b/app")
    shutil.copytree(place / "b" / "app", place / "b" / "other")
    assert "has backups of app, other: name one as application_id (on the command line: --application-id)." in said(
        *words, "--backup", "{0}/b"
    )


def test_a_name_that_no_store_has_is_told_with_those_there_are(said: Said) -> None:
    words = ("export", "spend", "--to", "{0}/x", "--backup", "{0}/b")
    assert said(*words).endswith("has no store 'spend'; there are: totals.\n")


def test_a_time_that_is_none_is_told_with_its_option(said: Said) -> None:
    words = ("export", "totals", "--to", "{0}/x", "--backup", "{0}/b", "--as-of", "gestern")
    assert said(*words) == (
        "error: as_of (on the command line: --as-of) is 'gestern': give the id of a backup, or a time of ISO 8601 such "
        "as 2026-11-29T08:53:00Z.\n"
    )


@pytest.mark.parametrize("words", [("export", "totals", "--to", "{0}/x"), ("snapshot", "totals", "--out", "{0}/x")])
def test_without_a_server_a_command_names_its_option_at_once(
    said: Said, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert said(*words, "--url", url, code=1) == (
            f"error: No server listens at {url}. Start one (stateline run MODULE:APP), or give its address with "
            "--url.\n"
        )
    assert waited == []


def test_a_server_that_fails_for_long_is_told_without_options_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.delenv("STATELINE_TOKEN", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server = server_at(f"http://127.0.0.1:{listening.server_port}", None, None)
        with pytest.raises(NotReadyError, match=r"If it only takes longer, run the command again\.$"):
            server.ask(LeanRequest("GET", "/v1/topology"), patience_s=0.01)
        listening.shutdown()


def test_one_name_instead_of_a_list_is_told(place: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"stores='totals' is a text: give a list, as in \['totals'\]"):
        backup(f"{place}/b").duckdb("totals")
