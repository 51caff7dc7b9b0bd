"""The application of the ingest benchmarks: one table. Who runs two of them names the second in the environment."""

import os

from stateline import serdes
from stateline.dsl.app import App

app = App(os.environ.get("INGEST_ID", "ingest"))
app.table("ingest", key=serdes.string, value=serdes.string)
