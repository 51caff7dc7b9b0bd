"""The sockets at which a server is reached: by clients, and by other nodes."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import NamedTuple

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.server.guard.exposure import check_exposure
from stateline.server.nodes.keys import why_alone
from stateline_store import ConfigurationError

BACKLOG = 2048
"""Connections that may wait to be taken; uvicorn's number."""


class Listeners(NamedTuple):
    """Both; that for other nodes is None where nobody can reach this one."""

    clients: socket.socket
    nodes: socket.socket | None


@contextmanager
def listening(config: Config) -> Iterator[Listeners]:
    """Both within the block, for servers that inherit them. Raises `ConfigurationError` as the two below."""
    with closing(http_listener(config)) as clients:
        nodes = peer_listener(config)
        with nodes or nullcontext():
            yield Listeners(clients, nodes)


def address(config: Config, listener: socket.socket) -> str:
    """The URL at which clients reach this listener."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.server_tls_key_file is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_host(config: Config) -> None:
    """Raise `ConfigurationError` as `http_listener`, but for a port that is in use, as beside a server that runs."""
    http_listener(config.model_copy(update={"server_port": 0})).close()


def http_listener(config: Config) -> socket.socket:
    """Listening, for clients. uvicorn would end the process when the port is taken, and listen when it has started:
    `StandIn` answers until then. Raises `ConfigurationError` when that cannot be, or not without tokens."""
    host, port = config.server_host, config.server_port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        check_exposure(config, str(address[0]))
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"server.host = {host!r} cannot be listened on: {error.strerror}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigurationError(
                f"server.host = {host!r} is no address of this machine: set server.host to one of its own, 127.0.0.1 "
                "for this machine alone or 0.0.0.0 for all of its addresses."
            ) from error
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigurationError(
            f"server.port = {port} on {host} {why}: stop what listens there, or take another port with "
            "--set server.port=NUMBER."
        ) from error
    return listener


def peer_listener(config: Config) -> socket.socket | None:
    """The socket at which other nodes reach this one; None where nobody can. Raises `ConfigurationError` when it cannot
    be made."""
    if embedded_path(config.bootstrap_servers, config.state_dir) is not None or why_alone(config):
        return None
    unless_set = config.server_host if config.node_peer_tls_certificate_file is not None else "127.0.0.1"
    host, _, port = (config.node_peer_listen or f"{unless_set}:0").rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        raise ConfigurationError(
            f"node.peer.listen = {host}:{port} cannot be listened on: {error.strerror}. Stop what listens there, or "
            "set another one."
        ) from error
    return listener
