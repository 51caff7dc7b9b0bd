"""Queries over HTTP: what was asked, how it is answered."""
