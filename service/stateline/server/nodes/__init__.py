"""Several machines: who the other nodes are, the links to them, and which of them has what."""
