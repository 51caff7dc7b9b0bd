"""Errors of a location are one line, with what to do."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from stateline.backup.location import BackupLocation
from stateline.backup.refusals import refusal
from stateline_store import ConfigurationError, RetryLaterError


def test_a_directory_that_refuses_is_told_without_internals(tmp_path: Path) -> None:
    (tmp_path / "app").touch()
    with pytest.raises(RetryLaterError, match=r"cannot write a lease: .*Not a directory") as refused:
        BackupLocation(str(tmp_path), "app").lease("1").__enter__()
    assert "\n" not in str(refused.value)


def test_s3_without_credentials_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cloud(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = HTTPServer(("127.0.0.1", 0), Cloud)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with closing(server.socket):
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with pytest.raises(RetryLaterError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as refused:
            BackupLocation("s3://bucket/x", "app").manifests()
        server.shutdown()
    assert "\n" not in str(refused.value)


def test_azure_without_an_account_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="AZURE_STORAGE_ACCOUNT_NAME") as refused:
        BackupLocation("az://container/x", "app")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "Make room"), (errno.EROFS, "for writing"), (errno.EACCES, "the right"), (errno.EIO, "")],
)
def test_errors_of_a_file_system_say_what_to_do(number: int, advice: str) -> None:
    text = f"Unable to write: {os.strerror(number)} (os error {number})"
    told = refusal("/backups", GenericError(f"{text}\n\nDebug source:\nGeneric {{"))
    assert told.startswith(text)
    assert advice in told
    assert "\n" not in told
