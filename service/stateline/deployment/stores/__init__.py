"""Which stores a state directory holds, and when a start empties them."""
