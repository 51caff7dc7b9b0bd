"""The state directory and its files."""
