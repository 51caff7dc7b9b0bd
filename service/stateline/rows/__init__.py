"""Rows of stores as Arrow: of an answer, of a snapshot, and of a backup."""
