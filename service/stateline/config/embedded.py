"""What `bootstrap.servers` says of an embedded log."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = "embedded"


def embedded_path(bootstrap_servers: str, state_dir: Path) -> Path | None:
    """The file that an embedded log of this setting is: ``embedded`` is ``log.db`` in `state_dir`, ``embedded:PATH``
    the file PATH. None of Kafka's brokers."""
    kind, colon, path = bootstrap_servers.partition(":")
    if kind != EMBEDDED:
        return None
    return Path(path) if colon else state_dir / "log.db"
