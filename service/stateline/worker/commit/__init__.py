"""Commits: their order, their schedule, and what surrounds them."""
