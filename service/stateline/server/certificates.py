"""Watch the certificates that a server process has loaded: when they expire, and new files in their place.

New files are loaded into the TLS contexts in use. Existing connections and links keep the old certificate. The files
are checked every `LOOK_S`, and at SIGHUP.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from stateline.config.settings import Config
from stateline.server.nodes.keys import Keys, load_again
from stateline.server.wire.tls import check_tls
from stateline_store import ConfigurationError

LOOK_S = 10.0
_WARN_WITHIN_S = 30 * 86_400
_WARN_AGAIN_S = 86_400

_log = logging.getLogger(__name__)


class Certificate:
    """One certificate in use. `load` loads its files into the contexts in use. If it cannot, it raises
    `ConfigurationError` and changes nothing."""

    def __init__(
        self, used_for: str, setting: str, files: Sequence[Path | None], load: Callable[[], None], advice: str
    ) -> None:
        self.used_for = used_for
        self.expires_s: float | None = None
        """Unix time; None if it cannot be read."""
        self._setting, self._advice, self._load = setting, advice, load
        self._files = [path for path in files if path is not None]  # its own, its key, its authority's
        self._warned_s = -float("inf")
        self._seen = self._stamps()
        self._read_expiry()

    @property
    def is_changed(self) -> bool:
        return self._seen != self._stamps()

    def reload(self) -> None:
        """Load the files, and log the result. If they cannot be used, the loaded certificate stays in use."""
        self._seen = self._stamps()
        try:
            self._load()
        except (ConfigurationError, ssl.SSLError, OSError) as error:
            _log.warning("The certificate in use stays, because new files cannot be used: %s", error)
            return
        self._read_expiry()
        self._warned_s = -float("inf")
        _log.info("%s was loaded; it is valid until %s.", self, _date(self.expires_s))

    def warning(self, now_s: float) -> str:
        """Return a warning if the certificate expires within 30 days, once a day; else an empty text. `now_s` is Unix
        time."""
        left_s = float("inf") if self.expires_s is None else self.expires_s - now_s
        if left_s > _WARN_WITHIN_S or now_s - self._warned_s < _WARN_AGAIN_S:
            return ""
        self._warned_s = now_s
        when = f"expires in {int(left_s // 86_400)} days, at" if left_s > 0 else "has expired at"
        return f"{self} {when} {_date(self.expires_s)}. {self._advice}"

    def __str__(self) -> str:
        return f"{self._setting}.certificate.file = '{self._files[0]}'"

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]

    def _read_expiry(self) -> None:
        try:
            self.expires_s = expiry_s(self._files[0], self._files[2] if len(self._files) > 2 else None)
        except (OSError, ValueError) as error:
            self.expires_s = None
            _log.warning("Nobody can tell when %s expires: %s", self, error)


class Certificates:
    """The certificates of one process. For the event loop's thread."""

    def __init__(self, config: Config, keys: Keys | None) -> None:
        self.loaded: list[Certificate] = []
        self._config = config
        if keys is not None and keys.dialing is not None:
            tls = config.node_peer_tls_certificate_file, config.node_peer_tls_key_file, config.node_peer_tls_ca_file
            advice = (
                "Then no other node links with this one after a restart or an interruption. Renew it with `stateline "
                "certificates renew` and copy it over the file: no restart is needed."
            )
            self.loaded.append(Certificate("nodes", "node.peer.tls", tls, lambda: load_again(config, keys), advice))

    def serve(self, context: ssl.SSLContext) -> None:
        """Add the certificate for clients, which is in this context."""
        certificate, key = self._config.server_tls_certificate_file, self._config.server_tls_key_file
        assert certificate is not None

        def load() -> None:
            check_tls(self._config)
            context.load_cert_chain(certificate, key, password="")  # else it asks the terminal

        advice = "Clients refuse it then. Put a new one in its place: no restart is needed."
        self.loaded.append(Certificate("clients", "server.tls", (certificate, key), load, advice))

    def reload(self) -> None:
        for certificate in self.loaded:
            certificate.reload()

    async def keep(self, *, warns: bool) -> None:
        """Load changed files, and warn of certificates that expire, until cancelled. One process of a node `warns`."""
        while True:
            for certificate in self.loaded:
                if certificate.is_changed:
                    certificate.reload()
                if warns and (line := certificate.warning(time.time())):
                    _log.warning("%s", line)
            await asyncio.sleep(LOOK_S)


def expiry_s(certificate: Path, authority: Path | None = None) -> float:
    """Return the Unix time at which a certificate, another one in its file, or its authority expires first.

    Raises `OSError` and `ValueError`.
    """
    from cryptography import x509  # a server without TLS need not load it

    own = x509.load_pem_x509_certificates(certificate.read_bytes())
    ends = [each.not_valid_after_utc.timestamp() for each in own]
    above = [] if authority is None else x509.load_pem_x509_certificates(authority.read_bytes())
    signers = [each.not_valid_after_utc.timestamp() for each in above if each.subject == own[-1].issuer]
    return min([*ends, *([max(signers)] if signers else [])])


def _date(expires_s: float | None) -> str:
    return "an unknown time" if expires_s is None else f"{datetime.fromtimestamp(expires_s, UTC):%Y-%m-%d %H:%M} UTC"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
