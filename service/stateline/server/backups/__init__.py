"""Backups of this node's stores: linked by its workers, and written to ``backup.location``."""
