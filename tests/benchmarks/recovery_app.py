"""The applications of the recovery benchmark: `RECOVERY_JOB` says which.

- store: records per key of `events`, with a changelog.
- table: the newest value of each key of `rows`, beside a processor, so that the group says where to go on.
"""

from __future__ import annotations

import os

from stateline import InputRecord, serdes
from stateline.dsl.app import App


def made(job: str) -> App:
    """The application of this job."""
    app = App(f"recovery-{job}")
    if job == "store":
        app.stream("events", key=serdes.string, value=serdes.string).group_by_key().count("counts")
        return app
    rows = app.topic("rows", key=serdes.string, value=serdes.string)
    app.table(rows)

    @app.process(rows)
    def look(record: InputRecord) -> None:
        """A reader of the topic besides the table."""

    return app


app = made(os.environ.get("RECOVERY_JOB", "store"))
