"""Kafka Streams' operators on the worker: each takes a slice of records, or of changes of a table, at once."""
