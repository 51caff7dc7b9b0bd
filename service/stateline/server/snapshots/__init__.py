"""Snapshots: stores of one moment, kept for whoever reads them."""
