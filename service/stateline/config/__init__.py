"""Settings: their names, defaults, types and units, and where each value came from."""
