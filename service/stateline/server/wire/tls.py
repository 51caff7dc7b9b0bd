"""Check the certificate and key of the settings for TLS (1.2 or newer, Python's default).

They are read once, at the start. A new certificate needs a restart, or a proxy that does TLS instead.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from stateline.config.settings import Config
from stateline_store import ConfigurationError

# Nobody but the owner may write the key. Its group may read it: services outside the certificates' folder get it so.
_OPEN_TO_OTHERS = stat.S_IRWXO | stat.S_IWGRP


def check_tls(config: Config) -> None:
    """Check the server's certificate and key, if they are set. uvicorn's errors would not name the setting.

    Raises `ConfigurationError` if they cannot be read, are not PEM or do not belong together, or if the key has a
    password or is open to others.
    """
    certificate, key = config.server_tls_certificate_file, config.server_tls_key_file
    if certificate is not None and key is not None:
        check_pair("server.tls", certificate, key)


def check_pair(settings: str, certificate: Path, key: Path) -> None:
    """Check a certificate and its key. `settings` is the prefix of the settings ``.certificate.file`` and
    ``.key.file``. Raises like `check_tls`."""
    _mode_of_readable(f"{settings}.certificate.file", certificate)
    check_closed(f"{settings}.key.file", key)
    _check_match(settings, certificate, key)


def check_closed(setting: str, path: Path) -> None:
    """Raise `ConfigurationError` if this file cannot be read, or others may read or write it."""
    mode = _mode_of_readable(setting, path)
    if mode & _OPEN_TO_OTHERS:
        raise _refused(setting, path, f"is open to others (mode {stat.S_IMODE(mode):04o}): chmod g-w,o= it")


def _mode_of_readable(setting: str, path: Path) -> int:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise _refused(setting, path, f"cannot be read: {error.strerror}") from error


def _check_match(settings: str, certificate: Path, key: Path) -> None:
    """Check the certificate alone, then the pair. For a pair, OpenSSL does not say which file is wrong."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise _refused(f"{settings}.certificate.file", certificate, "holds no certificate as PEM") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=""
        )  # else it asks the terminal
    except ssl.SSLError as error:
        why = "holds no private key as PEM, or one with a password"
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of {settings}.certificate.file"
        raise _refused(f"{settings}.key.file", key, why) from error


def _refused(setting: str, path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{setting} = {str(path)!r} {why}.")
