"""The declarations of an application's module: streams, tables, stores, processors, pipelines (docs/streams.md)."""
