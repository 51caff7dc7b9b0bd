"""The secret by which nodes of one machine link."""

from __future__ import annotations

from pathlib import Path


def write_secret(folder: Path, secret: str = "a secret of these nodes alone", name: str = "secret") -> Path:
    """The file, for ``node.peer.secret.file``: nobody else may read it."""
    file = folder / name
    file.write_text(secret)
    file.chmod(0o600)
    return file
