"""What a store keeps its rows in: the interface, and rows in memory."""
