"""The engines that keep a store's rows: the interface, and rows in memory."""
