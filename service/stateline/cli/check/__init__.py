"""`stateline check`: what can be known of a start without starting. Reads only, also beside running workers."""
