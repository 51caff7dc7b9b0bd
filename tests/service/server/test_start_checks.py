"""What would keep a server from starting is found before any process is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stateline.cli.main import cli
from stateline.cli.nodes.certificates import make_authority, make_certificate
from stateline.config.settings import Config
from stateline.processes import supervisor
from stateline.server.listeners import check_files, http_listener, listening
from stateline_store import ConfigurationError
from support.processes.linked_nodes import node_config, with_secret

NOW, YEAR = datetime.now(UTC), timedelta(days=365)


def with_certificate(
    folder: Path, name: str, *, ca: str = "ca.pem", now: datetime = NOW, lasts: timedelta = YEAR
) -> Config:
    make_authority(folder, NOW)
    make_authority(folder / "foreign", NOW)
    made = make_certificate(folder, name, (), now, lasts)
    return node_config(
        "node.name=one",
        "server.port=0",
        f"node.peer.tls.certificate.file={made.certificate}",
        f"node.peer.tls.key.file={made.key}",
        f"node.peer.tls.ca.file={folder / ca}",
    )


def check_start(config: Config) -> None:
    """What `stateline run` does before it starts a process."""
    check_files(config)
    with listening(config):
        pass


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_what_is_right_may_start(tmp_path: Path) -> None:
    for config in (with_certificate(tmp_path, "one"), with_secret(tmp_path), node_config("server.port=0")):
        check_start(config.model_copy(update={"server_port": 0}))


def test_a_server_listens_before_it_has_started() -> None:
    with http_listener(node_config("server.port=0")) as listener:
        socket.create_connection(listener.getsockname()).close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "one", "now": NOW - 2 * YEAR, "lasts": timedelta(days=1)}, "no other node: it has expired"),
        ({"name": "one", "now": NOW + YEAR}, "no other node: it is not valid yet"),
        ({"name": "one", "ca": "foreign/ca.pem"}, "another authority than that of node.peer.tls.ca.file has signed"),
        ({"name": "two"}, "is made out to two, and not to node.name, 'one'"),
    ],
)
def test_a_certificate_that_no_other_node_takes_is_refused(tmp_path: Path, given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        check_start(with_certificate(tmp_path, **given))  # type: ignore[arg-type]
    assert str(refused.value).startswith("node.peer.tls.certificate.file = ")


def test_an_address_that_is_in_use_is_named(tmp_path: Path, taken: int) -> None:
    for update in ({"server_port": taken}, {"server_port": 0, "node_peer_listen": f"127.0.0.1:{taken}"}):
        (setting,) = [name for name, value in update.items() if value]
        with pytest.raises(ConfigurationError, match=rf"{setting.replace('_', '.')} = .*{taken}"):
            check_start(with_secret(tmp_path).model_copy(update=update))


def test_run_starts_nothing_where_the_server_would_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    def run(self: object) -> None:
        raise AssertionError("A process was started.")

    monkeypatch.setattr(supervisor.Supervisor, "run", run)
    monkeypatch.setenv("STATELINE_STATE_DIR", str(tmp_path))
    done = CliRunner().invoke(cli, ["run", "support.apps.crash_app:app", "--set", f"server.port={taken}"])
    assert isinstance(done.exception, ConfigurationError)
    assert f"server.port = {taken} on 127.0.0.1 is in use" in str(done.exception)
    assert "--set server.port=NUMBER" in str(done.exception)
