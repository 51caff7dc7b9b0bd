"""`BackupFigures`: what a node has backed up.

They are in ``<application>/backups.json``, so that each process of the node can tell them, and they survive restarts:

    {"last_ms", "made", "failed", "written_bytes", "written_files", "tasks": {task: when its newest was made, or 0},
     "location"}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

FIGURES = "backups.json"  # on disk: never change


@dataclass(slots=True)
class BackupFigures:
    """Since the first backup of this state directory. `last_ms` is when the newest was made, in milliseconds since the
    epoch; 0 before the first. A backup that lacks a task of this node is written, and counts as failed. `tasks` has the
    same time by task, for all tasks of the application with stores on disk, also of other nodes. `location` is where
    the newest was written, empty before the first."""

    last_ms: int = 0
    made: int = 0
    failed: int = 0
    written_bytes: int = 0
    written_files: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    location: str = ""

    @classmethod
    def read(cls, application: Path) -> BackupFigures:
        """Read the file. All are 0 without one, and for an unreadable one. Members of a newer version are left out."""
        try:
            read = orjson.loads((application / FIGURES).read_bytes())
            return cls(**{name: read[name] for name in cls.__slots__ if name in read})
        except (OSError, orjson.JSONDecodeError, TypeError):
            return cls()
