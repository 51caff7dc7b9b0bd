"""Read `bootstrap.servers` for an embedded log."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = "embedded"


def embedded_path(bootstrap_servers: str, state_dir: Path) -> Path | None:
    """The file of the embedded log: ``log.db`` in `state_dir` for ``embedded``, PATH for ``embedded:PATH``. None for
    Kafka."""
    kind, colon, path = bootstrap_servers.partition(":")
    if kind != EMBEDDED:
        return None
    return Path(path) if colon else state_dir / "log.db"
