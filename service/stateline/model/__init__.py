"""An application as plain values: topics, stores, nodes, windows, and the topology of them all."""
