"""Backups of stores in a directory or an object store: written by nodes, and read without them."""
