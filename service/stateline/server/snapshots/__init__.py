"""Snapshots: stores of one moment, kept for readers until their lease ends."""
