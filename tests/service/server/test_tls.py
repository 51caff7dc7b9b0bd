"""TLS: a server that speaks it, and what it says about certificates and keys that it cannot use."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.server import drain, serve
from stateline.server.drain import DrainingServer
from stateline.server.main import create_app
from stateline.server.processes import uvicorn_settings
from stateline.server.wire.accepting import ConnectionCounts
from stateline.server.wire.tls import check_tls
from stateline_store import ConfigurationError
from support import TESTS
from support.processes.ports import free_port
from support.processes.query_server import make_app, wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl, which makes the certificate, is not installed")


def openssl(*arguments: str) -> None:
    subprocess.run([str(OPENSSL), *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `cert.pem` and `key.pem`, of `other.pem`, another key, and `locked.pem`, the key with a password."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl("req", "-x509", "-newkey", "ec", *curve, "-nodes", "-keyout", key, "-out", certificate, *subject)
    openssl("genpkey", "-algorithm", "EC", *curve, "-out", str(folder / "other.pem"))
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", str(folder / "locked.pem"))
    for name in ("key.pem", "other.pem", "locked.pem"):
        (folder / name).chmod(0o600)
    return folder


def settings(certificate: Path | None, key: Path | None) -> list[str]:
    given = {"server.tls.certificate.file": certificate, "server.tls.key.file": key}
    return [f"{name}={path}" for name, path in given.items() if path is not None]


def refusal(certificate: Path, key: Path) -> str:
    config = load_config("flights-app", overrides=settings(certificate, key))
    with pytest.raises(ConfigurationError) as raised:
        check_tls(config)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_server_speaks_tls_and_nothing_else(files: Path, tmp_path: Path) -> None:
    port = free_port()
    given = [f"server.port={port}", *settings(files / "cert.pem", files / "key.pem")]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.processes.query_server", str(tmp_path), *given], cwd=TESTS
    )
    trusting = ssl.create_default_context(cafile=str(files / "cert.pem"))
    try:
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, timeout=HANGING_S) as client:
            wait_until(lambda: process.poll() is not None or answers(client))
            assert client.get("/v1/topology").json()["application_id"] == "flights-app"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://127.0.0.1:{port}/healthz")
        process.terminate()
        assert process.wait(HANGING_S) == 0
    finally:
        process.kill()
        process.wait()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_without_a_certificate_there_is_nothing_to_check() -> None:
    check_tls(load_config("flights-app"))


def test_a_pair_that_belongs_together_is_taken(files: Path) -> None:
    check_tls(load_config("flights-app", overrides=settings(files / "cert.pem", files / "key.pem")))


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ("server.tls.certificate.file", "server.tls.key.file"),
        ("server.tls.key.file", "server.tls.certificate.file"),
    ],
)
def test_one_without_the_other_is_refused(there: str, missing: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_config("flights-app", overrides=[f"{there}=some.pem"])
    assert str(raised.value) == f"{there} = 'some.pem' (from --set) needs {missing}: set both, or neither."


def test_a_file_that_is_not_there_is_named(files: Path) -> None:
    assert refusal(files / "none.pem", files / "key.pem").startswith("server.tls.certificate.file = ")
    missing = refusal(files / "cert.pem", files / "none.pem")
    assert missing == f"server.tls.key.file = '{files}/none.pem' cannot be read: No such file or directory."


def test_what_is_no_certificate_is_named(files: Path) -> None:
    assert "server.tls.certificate.file" in (said := refusal(files / "key.pem", files / "key.pem"))
    assert "holds no certificate as PEM" in said


def test_what_is_no_key_is_named(files: Path, tmp_path: Path) -> None:
    nonsense = tmp_path / "key.pem"
    nonsense.write_text("no key")
    nonsense.chmod(0o600)
    said = refusal(files / "cert.pem", nonsense)
    assert said.startswith("server.tls.key.file = ")
    assert "holds no private key as PEM, or one with a password" in said


def test_the_key_of_another_certificate_is_named(files: Path) -> None:
    assert "is not the key of server.tls.certificate.file" in refusal(files / "cert.pem", files / "other.pem")


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(files: Path) -> None:
    assert "or one with a password" in refusal(files / "cert.pem", files / "locked.pem")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_key_that_is_open_to_others_is_refused(files: Path, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "key.pem"
    shutil.copy(files / "key.pem", key)
    key.chmod(mode)
    assert f"is open to others (mode {mode:04o}): chmod g-w,o= it" in refusal(files / "cert.pem", key)
    key.chmod(0o640)
    check_tls(load_config("flights-app", overrides=settings(files / "cert.pem", key)))


def test_serve_says_so_before_it_listens(files: Path, tmp_path: Path) -> None:
    given = settings(files / "cert.pem", files / "other.pem")
    config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", "server.port=0", *given])
    with pytest.raises(ConfigurationError, match=r"server\.tls\.key\.file"):
        serve(make_app(), config)


@pytest.mark.parametrize("several", [pytest.param(False, marks=long_only("several have more to close")), True])
def test_a_client_that_does_not_begin_with_tls_is_hung_up_on(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Within the time that a request may take to begin; here it is shorter, and one that speaks TLS is answered."""
    monkeypatch.setattr(drain, "PATIENCE_S", 2.0)
    given = [f"state.dir={tmp_path}", *settings(files / "cert.pem", files / "key.pem")]
    config = load_config("flights-app", environment={}, overrides=given)
    ConnectionCounts.create(tmp_path / "counts", 2)
    counts = ConnectionCounts(tmp_path / "counts", 0) if several else None
    api, listener = create_app(make_app(), config), socket.create_server(("127.0.0.1", 0))
    is_ready = threading.Event()
    serving = api.state.serving
    server = DrainingServer(
        uvicorn_settings(api, config), serving.certificates, serving.readiness, 0, counts, ready=is_ready.set
    )
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert is_ready.wait(HANGING_S)
        at = listener.getsockname()
        with socket.create_connection(at, HANGING_S) as silent, contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        trusting = ssl.create_default_context(cafile=str(files / "cert.pem"))
        with httpx.Client(base_url=f"https://127.0.0.1:{at[1]}", verify=trusting, timeout=HANGING_S) as client:
            assert client.get("/healthz").status_code == 200
    finally:
        server.should_exit = True
        thread.join(HANGING_S)
        listener.close()
