"""Standbys: which tasks of other nodes this worker follows, and how."""
