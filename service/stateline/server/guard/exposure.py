"""Whether a server may be reached by others as it is set up: asked before it listens."""

from __future__ import annotations

import ipaddress
import logging

from stateline.config.settings import Config
from stateline.server.guard.tokens import read_tokens
from stateline_store import ConfigurationError

_log = logging.getLogger(__name__)


def check_tokens(config: Config) -> None:
    """Raise `ConfigurationError` when there is a tokens file that cannot be read: before any process is started."""
    if config.server_tokens_file is not None:
        read_tokens(config.server_tokens_file)


def check_exposure(config: Config, address: str) -> None:
    """`refuse_exposure`, and a warning where tokens go unencrypted."""
    refuse_exposure(config, address)
    has_tokens, is_plain = config.server_tokens_file is not None, config.server_tls_certificate_file is None
    if has_tokens and is_plain and not ipaddress.ip_address(address).is_loopback:
        _log.warning("Tokens reach %s unencrypted: set server.tls.certificate.file, or put TLS in front", address)


def refuse_exposure(config: Config, address: str) -> None:
    """Raise `ConfigurationError` when other machines reach this address, and neither are there tokens nor was it said
    that this is meant (server.insecure).
    """
    is_guarded = config.server_tokens_file is not None or config.server_insecure
    if not is_guarded and not ipaddress.ip_address(address).is_loopback:
        raise ConfigurationError(
            f"server.host = {config.server_host!r} (from {config.origin('server.host')}) is reached by other machines, "
            "and there are no tokens: set server.tokens.file (`stateline token add` makes one), or "
            "server.insecure=true where something else guards it."
        )
