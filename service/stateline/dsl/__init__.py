"""What an application's module says: streams, tables, stores, processors, pipelines (docs/streams.md)."""
