"""Rows in RocksDB."""
