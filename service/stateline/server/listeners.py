"""The sockets of a server, for clients and for other nodes, and checks before it starts."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import NamedTuple

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.config.temporary import use_temporary_directory
from stateline.server.guard.tokens import read_tokens
from stateline.server.nodes.keys import check_certificate, node_keys, why_alone
from stateline.server.wire.tls import check_tls
from stateline_store import ConfigurationError

_log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that may wait to be taken; uvicorn's number."""


class Listeners(NamedTuple):
    """Both sockets. `nodes` is None if other nodes cannot reach this one."""

    clients: socket.socket
    nodes: socket.socket | None


@contextmanager
def listening(config: Config) -> Iterator[Listeners]:
    """Keep both open within the block, for servers that inherit them. Raises `ConfigurationError`."""
    with closing(http_listener(config)) as clients:
        nodes = peer_listener(config)
        with nodes or nullcontext():
            yield Listeners(clients, nodes)


def address(config: Config, listener: socket.socket) -> str:
    """Return the URL at which clients reach this listener."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.server_tls_key_file is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_files(config: Config) -> None:
    """Raise `ConfigurationError` for certificates, keys, secrets and tokens that cannot be used, and if there is no
    directory for temporary files.

    Called before any process starts. A worker that has joined its group has taken tasks from others, and nobody can
    query them if the server then fails to start.
    """
    use_temporary_directory(config)
    check_tls(config)
    if config.server_tokens_file is not None:
        read_tokens(config.server_tokens_file)
    if embedded_path(config.bootstrap_servers, config.state_dir) is None:
        keys = node_keys(config)
        if keys is not None:
            check_certificate(config, keys)


def check_host(config: Config) -> None:
    """Raise `ConfigurationError` like `http_listener`, but allow a port in use, such as by a running server."""
    http_listener(config.model_copy(update={"server_port": 0})).close()


def http_listener(config: Config) -> socket.socket:
    """Return a listening socket for clients. uvicorn would exit if the port is in use, and listen only after its start;
    `StandIn` answers until then.

    Raises `ConfigurationError` if that is impossible, or not allowed without tokens.
    """
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
    """Return the socket at which other nodes reach this one; None if they cannot.

    Raises `ConfigurationError` if it cannot be made.
    """
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


def check_exposure(config: Config, address: str) -> None:
    """Do what `refuse_exposure` does, and warn if tokens are sent unencrypted."""
    refuse_exposure(config, address)
    has_tokens, is_plain = config.server_tokens_file is not None, config.server_tls_certificate_file is None
    if has_tokens and is_plain and not ipaddress.ip_address(address).is_loopback:
        _log.warning("Tokens reach %s unencrypted: set server.tls.certificate.file, or put TLS in front", address)


def refuse_exposure(config: Config, address: str) -> None:
    """Raise `ConfigurationError` if other machines reach this address, without tokens or server.insecure."""
    is_guarded = config.server_tokens_file is not None or config.server_insecure
    if not is_guarded and not ipaddress.ip_address(address).is_loopback:
        raise ConfigurationError(
            f"server.host = {config.server_host!r} (from {config.origin('server.host')}) is reached by other machines, "
            "and there are no tokens: set server.tokens.file (`stateline token add` makes one), or "
            "server.insecure=true where something else guards it."
        )
