"""Kafka Streams' DSL for what runs on the worker: `App.stream` and `App.ktable` begin it (docs/streams.md)."""
