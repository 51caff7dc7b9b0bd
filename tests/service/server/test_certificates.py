"""Certificates in use: when they expire, who is warned, and new files in their place while connections stay."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from cryptography import x509

from stateline.cli.nodes.certificates import make_authority, make_certificate, renew_certificate
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.server import certificates
from stateline.server.certificates import Certificates, expiry_s
from stateline.server.nodes.keys import Keys, node_keys
from support import TESTS
from support.processes.linked_nodes import LinkedNode, node_config, run, until
from support.processes.ports import free_port
from support.processes.serve_process import Served, served, wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

NOW = datetime.now(UTC)
DAY_S = 86_400


def config_of(folder: Path, name: str, lasts: timedelta = timedelta(days=90)) -> Config:
    """A node with a certificate of this folder's authority."""
    make_authority(folder, NOW)
    made = make_certificate(folder, name, ["127.0.0.1"], NOW, lasts)
    return node_config(
        f"node.name={name}",
        f"node.peer.tls.certificate.file={made.certificate}",
        f"node.peer.tls.key.file={made.key}",
        f"node.peer.tls.ca.file={folder / 'ca.pem'}",
    )


def loaded(config: Config) -> tuple[Certificates, Keys]:
    keys = node_keys(config)
    assert keys is not None
    return Certificates(config, keys), keys


def renew(folder: Path, name: str, days: int = 200, *, new_key: bool = False) -> None:
    renew_certificate(folder, name, datetime.now(UTC), timedelta(days=days), new_key=new_key)


def serial_of(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def serial_at(port: int, context: ssl.SSLContext) -> int:
    """Of the certificate that is shown at this port."""
    with socket.create_connection(("127.0.0.1", port), HANGING_S) as plain, context.wrap_socket(plain) as connection:
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"").serial_number


def test_a_warning_comes_from_30_days_before_once_a_day_and_again_after_expiry(tmp_path: Path) -> None:
    (certificate,) = loaded(config_of(tmp_path, "one"))[0].loaded
    expires_s = (NOW + timedelta(days=90)).timestamp()
    said = [(day, certificate.warning(expires_s + day * DAY_S)) for day in (-60, -31, -29.5, -29.4, -28.4, 0.5, 0.6)]
    assert [day for day, line in said if line] == [-29.5, -28.4, 0.5]
    lines = [line for _, line in said if line]
    assert lines[0].startswith(f"node.peer.tls.certificate.file = '{tmp_path}/one.pem' expires in 29 days, at ")
    assert " has expired at " in lines[2]
    assert all("`stateline certificates renew`" in line for line in lines)


def test_a_certificate_expires_with_the_first_of_its_file_and_with_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path, NOW - timedelta(days=3600))
    made = make_certificate(tmp_path, "one", (), NOW, timedelta(days=365))
    ends = (NOW + timedelta(days=50)).timestamp()
    assert abs(expiry_s(made.certificate, tmp_path / "ca.pem") - ends) < 1
    assert abs(expiry_s(made.certificate) - ends) < 1, "the authority signs nothing that outlasts it"
    both = tmp_path / "both.pem"
    both.write_bytes(made.certificate.read_bytes() + (tmp_path / "ca.pem").read_bytes())
    assert expiry_s(both) <= ends


@pytest.mark.parametrize("new_key", [False, True])
def test_a_link_outlives_a_renewal_and_later_ones_have_the_new_certificate(tmp_path: Path, new_key: bool) -> None:
    async def scene() -> None:
        configs = {name: config_of(tmp_path, name) for name in ("one", "two")}
        one, two = (LinkedNode(name, config) for name, config in configs.items())
        for node, other in ((one, two), (two, one)):
            node.hear_of(other.nodes.own.node, other.entry)
        await until(lambda: one.is_linked_with("two") and two.is_linked_with("one"))
        link, keys = two.nodes.link("one"), one.nodes._keys
        assert keys is not None
        found = Certificates(configs["one"], keys)
        renew(tmp_path, "one", new_key=new_key)
        found.reload()
        assert found.loaded[0].expires_s == expiry_s(tmp_path / "one.pem")
        _, others = loaded(configs["two"])
        port = int(one.peer.rpartition(":")[2])
        assert others.dialing is not None
        assert await asyncio.to_thread(serial_at, port, others.dialing) == serial_of(tmp_path / "one.pem")
        assert two.nodes.link("one") is link
        assert link is not None
        assert link.alive
        await one.close()
        await two.close()

    run(scene())


def test_files_that_cannot_be_used_are_named_and_the_certificate_in_use_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, keys = loaded(config_of(tmp_path, "one"))
    before = found.loaded[0].expires_s
    good = (tmp_path / "one.pem").read_bytes(), (tmp_path / "one.key").read_bytes()
    make_certificate(tmp_path, "two", (), NOW, timedelta(days=300))
    expired = make_certificate(tmp_path, "gone", (), NOW - timedelta(days=9), timedelta(days=1))
    for certificate, key, why in (
        (tmp_path / "two.pem", tmp_path / "one.key", "is not the key of"),
        (tmp_path / "two.pem", tmp_path / "two.key", "is made out to two, and not to node.name, 'one'"),
        (expired.certificate, expired.key, "it has expired"),
    ):
        new = certificate.read_bytes(), key.read_bytes()
        (tmp_path / "one.pem").write_bytes(new[0])
        (tmp_path / "one.key").write_bytes(new[1])
        caplog.clear()
        found.reload()
        assert "The certificate in use stays" in caplog.text
        assert why in caplog.text
        assert found.loaded[0].expires_s == before
        (tmp_path / "one.pem").write_bytes(good[0])
        (tmp_path / "one.key").write_bytes(good[1])
    assert keys.dialing is not None


def test_files_that_change_are_loaded_without_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.01)
    found, _ = loaded(config_of(tmp_path, "one", timedelta(days=2)))

    async def scene() -> None:
        keeping = asyncio.create_task(found.keep(warns=True))
        await until(lambda: "expires in 1 days" in caplog.text)
        renew(tmp_path, "one")
        await until(lambda: "was loaded" in caplog.text)
        keeping.cancel()

    with caplog.at_level(logging.INFO):
        run(scene())
    assert found.loaded[0].expires_s == expiry_s(tmp_path / "one.pem")
    assert caplog.text.count("expires in") == 1


BY_SEVERAL = pytest.param(
    "server.processes=2", marks=long_only("test_processes.py has how several are replaced, one by one")
)


@pytest.fixture(params=["server.processes=1", BY_SEVERAL])
def with_tls(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server that speaks TLS."""
    config_of(tmp_path / "tls", "one", timedelta(days=9))
    files = {"certificate": tmp_path / "tls" / "one.pem", "key": tmp_path / "tls" / "one.key"}
    tls = [f"server.tls.{what}.file={path}" for what, path in files.items()]
    with served(tmp_path / "state", request.param, *tls) as one:
        wait_until(lambda: one.process.poll() is not None or answers(one, trusting(tmp_path)))
        yield one


def trusting(tmp_path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))


def port_of(one: Served) -> int:
    return int(one.url.rpartition(":")[2])


def answers(one: Served, trusted: ssl.SSLContext) -> bool:
    with closing(HTTPSConnection("127.0.0.1", port_of(one), timeout=HANGING_S, context=trusted)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False


def test_sighup_loads_the_certificate_for_clients(with_tls: Served, tmp_path: Path) -> None:
    """By one process into what it has, so that connections stay; of several the next ones have it."""
    trusted, port = trusting(tmp_path), port_of(with_tls)
    context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
    context.check_hostname = False
    single = not with_tls.children()
    with closing(HTTPSConnection("127.0.0.1", port, timeout=HANGING_S, context=trusted)) as kept:
        kept.request("GET", "/metrics")
        told = kept.getresponse().read().decode()
        (line,) = [each for each in told.splitlines() if each.startswith("stateline_certificate_expiry_seconds{")]
        assert line.startswith('stateline_certificate_expiry_seconds{certificate="clients"} ')
        assert abs(float(line.rpartition(" ")[2]) - (NOW + timedelta(days=9)).timestamp()) < 1
        wait_until(lambda: len(with_tls.lines("one.pem' expires in 8 days")) == 1)
        renew(tmp_path / "tls", "one")
        renewed = serial_of(tmp_path / "tls" / "one.pem")
        with_tls.process.send_signal(signal.SIGHUP)
        wait_until(lambda: serial_at(port, context) == renewed)
        if single:
            address = kept.sock.getsockname()
            kept.request("GET", "/healthz")
            assert kept.getresponse().status == 200
            assert kept.sock.getsockname() == address
    with_tls.process.terminate()
    assert with_tls.process.wait(HANGING_S) == 0


def test_a_server_whose_terminal_goes_ends_by_sighup(tmp_path: Path) -> None:
    ours, its = os.openpty()
    command = ["-m", "stateline", "serve", "support.apps.flights_app:app", "--set", f"state.dir={tmp_path}"]
    command += ["--set", f"server.port={free_port()}"]
    log = tmp_path / "log"
    in_session = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0);"
        "os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", in_session, str(its), *command],
            cwd=TESTS, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[its],
        )  # fmt: skip
    try:
        os.close(its)
        wait_until(lambda: process.poll() is not None or b"nswer" in log.read_bytes())
        os.close(ours)
        assert process.wait(HANGING_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_nothing_is_told_of_certificates_where_there_are_none() -> None:
    assert Certificates(load_config("app", environment={}), None).loaded == []
