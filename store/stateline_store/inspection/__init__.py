"""Stores that nobody has open: their content, and upgrades of their format."""
