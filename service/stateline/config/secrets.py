"""Hide secrets in listings and messages. Pure."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

# Keys are secrets too (fs.s3a.access.key, API_KEY, fs.azure.account.key.NAME). Paths of key files are not.
_SECRET = re.compile(
    r"password|passwd|passphrase|pass(?:[._-]|$)|(?:^|[._-])(?:pwd|pw|sas|sig|signature)(?:[._-]|$)"
    r"|user\.info|secret(?!\.file$)|jaas|credential(?!s?\.provider)|token(?!s\.file$)"
    r"|(?:[._-]|access|account|api|private|secret)key(?!\.(?:file|location)$)(?:[._-]|$)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(?:^|://|[,\s])[^/@\s:,]*:(?!//)\S*@")  # u:password@host; a password may have a slash
_ASSIGNED = re.compile(r"([\w.-]+)\s*=")  # -Djavax.net.ssl.keyStorePassword=…, jdbc:…?password=…


def is_secret(name: str, value: str) -> bool:
    """Whether this setting's name or value has a password or a key. A user name alone is no secret."""
    if _SECRET.search(name) or _LOGIN.search(value):
        return True
    return any(_SECRET.search(assigned) for assigned in _ASSIGNED.findall(value))
