"""Kafka Streams' operators: each takes a slice of records, or of changes of a table, at once."""
