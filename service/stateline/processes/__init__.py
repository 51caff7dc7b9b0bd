"""Start, watch and end processes that belong together."""
