"""The application of the ingest benchmarks: one table."""

from stateline import serdes
from stateline.dsl.app import App

app = App("ingest")
app.table("ingest", key=serdes.string, value=serdes.string)
