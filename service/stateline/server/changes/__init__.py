"""The change feed: a store's committed changes, as they come."""
