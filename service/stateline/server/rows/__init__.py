"""Rows of an answer as NDJSON, CSV or events, written as they are read."""
