"""Rows of an answer as Arrow, NDJSON or events, written as they are read."""
