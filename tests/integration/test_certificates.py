"""Certificates of nodes are renewed under links: two servers as processes, on a real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from stateline.cli.nodes import commands as node
from stateline.cli.nodes.certificates import make_authority, make_certificate
from stateline.log import open_log
from support import TESTS
from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create
from support.processes.serve_process import Served, status_of
from support.run.patience import HANGING_S

NOW = datetime.now(UTC)
LASTS = timedelta(days=3)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the authority and the nodes' certificates are."""
    return tmp_path_factory.mktemp("nodes") / "tls"


@pytest.fixture(scope="module")
def nodes(kafka_broker: SharedBroker, tls: Path) -> Iterator[dict[str, Served]]:
    """Servers of nodes one and two, which are linked; the certificate of one is about to expire."""
    run, found, directory = uuid4().hex[:8], dict[str, Served](), tls.parent
    make_authority(tls, NOW)
    with closing(open_log(kafka_broker.bootstrap_servers, directory)) as log:
        create(log, {f"in-{run}": 1})
    try:
        for name in ("one", "two"):
            make_certificate(tls, name, (), NOW, LASTS if name == "one" else 100 * LASTS)
            port = free_port()
            settings = [
                f"bootstrap.servers={kafka_broker.bootstrap_servers}", f"state.dir={directory / name}",
                f"node.name={name}", f"server.port={port}", f"node.peer.tls.ca.file={tls / 'ca.pem'}",
                f"node.peer.tls.certificate.file={tls / name}.pem", f"node.peer.tls.key.file={tls / name}.key",
            ]  # fmt: skip
            line = ["serve", "support.apps.sick_app:app", *(part for each in settings for part in ("--set", each))]
            environment = {**os.environ, "SICK_RUN": run, "SICK_IF": str(directory / "never")}
            log_file = directory / f"{name}.log"
            with log_file.open("wb") as output:
                process = Forked(line, cwd=TESTS, env=environment, output=output.fileno())
            found[name] = Served(process, f"http://127.0.0.1:{port}", log_file)
        for one in found.values():
            wait_until(lambda one=one: one.process.poll() is not None or is_linked(one), HANGING_S)  # type: ignore[misc]
        yield found
    finally:
        for one in found.values():
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()


def is_linked(one: Served) -> bool:
    return status_of(one, "/healthz") == 200 and not one.lines("Traceback") and bool(one.lines("Linked with node"))


def expiry_s(one: Served) -> float:
    (line,) = [
        each for each in one.fresh("/metrics").text.splitlines()
        if each.startswith('stateline_certificate_expiry_seconds{certificate="nodes"}')
    ]  # fmt: skip
    return float(line.rpartition(" ")[2])


def test_a_renewed_certificate_is_loaded_at_sighup_and_links_stay(nodes: dict[str, Served], tls: Path) -> None:
    one, two = nodes["one"], nodes["two"]
    assert abs(expiry_s(one) - (NOW + LASTS).timestamp()) < 1
    assert one.lines("one.pem' expires in 2 days, at ")
    assert not two.lines("expires in")
    linked = {name: (each.lines("Linked with node"), each.lines("has ended")) for name, each in nodes.items()}

    renew = ["renew", "one", "--directory", str(tls), "--days", "200"]
    done = CliRunner().invoke(node.certificates, renew, catch_exceptions=False)
    assert done.exit_code == 0
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(one.lines("one.pem' was loaded; it is valid until")), HANGING_S)

    assert expiry_s(one) > (NOW + timedelta(days=199)).timestamp()
    assert len(one.lines("expires in")) == 1
    for name, each in nodes.items():
        assert (each.lines("Linked with node"), each.lines("has ended")) == linked[name]
        other = {"one": "two", "two": "one"}[name]
        assert each.fresh("/v1/nodes").json()["nodes"][other]["reached"]


def test_a_file_that_no_node_would_take_changes_nothing_and_links_stay(nodes: dict[str, Served], tls: Path) -> None:
    one = nodes["one"]
    before = expiry_s(one)
    (tls / "one.pem").write_bytes((tls / "two.pem").read_bytes())
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(one.lines("The certificate in use stays")), HANGING_S)
    assert one.lines("is not the key of node.peer.tls.certificate.file")
    assert expiry_s(one) == before
    assert not one.lines("has ended")
