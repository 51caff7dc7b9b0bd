"""Stores of each kind, and their transactions."""
