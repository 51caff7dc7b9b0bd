"""Stores as a server sees them: partitions, epochs of the worker's, cursors, waiting for a Position."""
