"""TLS, from the certificate and the key that the settings name; 1.2 or newer, which is Python's default.

They are read once, at the start: a new certificate takes a restart, or a proxy in front that does TLS instead.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from stateline.config.settings import Config
from stateline_store import ConfigurationError

# A key that everybody may read is no secret. Its group may: that is how a service without a right to the folder of
# certificates is given one.
_OPEN_TO_OTHERS = stat.S_IRWXO | stat.S_IWGRP


def check_tls(config: Config) -> None:
    """Look at certificate and key, if they are set, before uvicorn does, which would fail without naming a setting.

    Raises `ConfigurationError` when certificate or key cannot be read, are not PEM or do not belong together, or when
    the key has a password or is open to everybody.
    """
    certificate, key = config.server_tls_certificate_file, config.server_tls_key_file
    if certificate is not None and key is not None:
        check_pair("server.tls", certificate, key)


def check_pair(settings: str, certificate: Path, key: Path) -> None:
    """Look at a certificate and its key, which `settings` with ``.certificate.file`` and ``.key.file`` name. Raises as
    `check_tls`."""
    _mode_of_readable(f"{settings}.certificate.file", certificate)
    check_closed(f"{settings}.key.file", key)
    _check_match(settings, certificate, key)


def check_closed(setting: str, path: Path) -> None:
    """Raise `ConfigurationError` where this file cannot be read, or is open to others."""
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
    """The certificate on its own first: of a pair OpenSSL does not say which file is wrong."""
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
