"""Queries, and the readers that answer them."""
