"""Snapshots, checkpoints, and copies of stores."""
