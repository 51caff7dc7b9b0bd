"""The keys of nodes: certificates of one authority, or a secret between nodes of one machine."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from stateline.config.settings import Config
from stateline.server.wire.tls import check_closed, check_pair
from stateline_store import ConfigurationError

_LEAST_SECRET_BYTES = 16
_ANOTHER_AUTHORITY = "another authority than that of node.peer.tls.ca.file has signed it"
_IN_WORDS = {  # what OpenSSL says
    "certificate has expired": "it has expired",
    "certificate is not yet valid": "it is not valid yet, or this machine's clock is wrong",
    "unable to get local issuer certificate": _ANOTHER_AUTHORITY,
    "self-signed certificate in certificate chain": _ANOTHER_AUTHORITY,
    "self-signed certificate": _ANOTHER_AUTHORITY,
}


class Keys(NamedTuple):
    """TLS for both directions, or a secret. One of the two."""

    dialing: ssl.SSLContext | None
    listening: ssl.SSLContext | None
    secret: bytes | None


def node_keys(config: Config) -> Keys | None:
    """Return the keys that these settings name; None where nodes do not link (`why_alone`). Raises `ConfigurationError`
    for files that cannot be used."""
    certificate, key = config.node_peer_tls_certificate_file, config.node_peer_tls_key_file
    authority = config.node_peer_tls_ca_file
    if certificate is not None and key is not None and authority is not None:
        check_pair("node.peer.tls", certificate, key)
        try:
            files = str(certificate), str(key), str(authority)
            return Keys(_context(*files, dialing=True), _context(*files, dialing=False), None)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "no certificate as PEM"
            raise ConfigurationError(f"node.peer.tls.ca.file = {str(authority)!r} cannot be used: {why}.") from error
    return None if why_alone(config) else Keys(None, None, _secret(config))


def load_again(config: Config, keys: Keys) -> None:
    """Load the files into the contexts of `keys`, for the links that are made from now on. Raises `ConfigurationError`,
    and changes nothing, for files that `node_keys` or `check_certificate` refuse. A former authority stays trusted."""
    found = node_keys(config)
    if found is not None:
        check_certificate(config, found)
    for context in (keys.dialing, keys.listening):
        if context is not None:
            _load(
                context,
                str(config.node_peer_tls_certificate_file),
                str(config.node_peer_tls_key_file),
                str(config.node_peer_tls_ca_file),
            )


def why_alone(config: Config) -> str:
    """Return why this node has no links, and what to do about it; empty if it may have links."""
    if config.node_peer_tls_certificate_file is not None:
        return ""
    if config.node_peer_secret_file is None:
        return (
            "nodes know each other by certificates (node.peer.tls.…) or, on one machine, by a secret "
            "(node.peer.secret.file), and neither is set: stateline node certificate makes some"
        )
    for setting, place in (
        ("node.peer.listen", config.node_peer_listen),
        ("node.peer.advertised", config.node_peer_advertised),
    ):
        if place is not None and not is_loopback(place):
            return (
                f"{setting} = {place} is no loopback address, and a secret leaves what nodes say unencrypted: use "
                "certificates (node.peer.tls.…), or an address as 127.0.0.1:8001"
            )
    return ""


def check_certificate(config: Config, keys: Keys) -> None:
    """Raise `ConfigurationError` when no other node takes this one's certificate: it has expired, another authority has
    signed it, it is not made out to this node. Found out by greeting oneself."""
    if keys.dialing is None or keys.listening is None:
        return
    if fault := certificate_fault(keys):
        why = f"is taken by no other node: {fault}"
    else:
        names = _names_seen(keys.dialing, keys.listening)
        if config.node in names:
            return
        why = f"is made out to {', '.join(names) or 'nobody'}, and not to node.name, {config.node!r}"
    raise ConfigurationError(
        f"node.peer.tls.certificate.file = {str(config.node_peer_tls_certificate_file)!r} {why}. `stateline node "
        "certificate` makes one, and `stateline certificates renew` renews one."
    )


def certificate_fault(keys: Keys) -> str:
    """Return why no other node accepts this certificate now; empty if some may, and without a certificate."""
    if keys.dialing is None or keys.listening is None:
        return ""
    try:
        _names_seen(keys.dialing, keys.listening)
    except ssl.SSLError as error:
        return _in_words(error)
    return ""


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """The DNS names that a certificate, as `ssl` shows it, is made out to."""
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]


def _names_seen(dialing: ssl.SSLContext, listening: ssl.SSLContext) -> list[str]:
    """To whom the certificate is made out that a listener shows to itself. Raises `ssl.SSLError` when either end does
    not take it."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [dialing.wrap_bio(back, there), listening.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
                if not end.server_side:
                    names = certificate_names(end.getpeercert() or {})
    return names


def is_loopback(place: str) -> bool:
    """Whether this ``host:port`` is an address of the machine itself. A name is none, whatever it leads to: who leads
    it elsewhere would be taken for the node."""
    try:
        return ipaddress.ip_address(place.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False


def tls_failure(error: ssl.SSLError) -> str:
    """Return a description of the failure: this end refuses the other's certificate, or the other end refuses this
    one's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {_in_words(error)}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "certificate" in reason or "unknown ca" in reason:
        return f"it does not take this node's certificate: {reason}"
    return f"TLS failed: {reason}"


def _in_words(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", "") or str(error)
    return _IN_WORDS.get(message, message)


def _secret(config: Config) -> bytes:
    path = config.node_peer_secret_file
    assert path is not None
    check_closed("node.peer.secret.file", path)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"node.peer.secret.file = {str(path)!r} cannot be read: {error.strerror}.") from error
    if len(secret) < _LEAST_SECRET_BYTES:
        raise ConfigurationError(
            f"node.peer.secret.file = {str(path)!r} holds {len(secret)} bytes: write at least {_LEAST_SECRET_BYTES} "
            "that nobody can guess (openssl rand -hex 32)."
        )
    return secret


def _context(certificate: str, key: str, authority: str, *, dialing: bool) -> ssl.SSLContext:
    """TLS in which both ends have certificates of the nodes' authority. Host names are not compared: `greeting` asks
    whether a certificate is made out to the node."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialing else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, certificate, key, authority)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str, authority: str) -> None:
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key, password="")  # else it asks the terminal
