"""Who may ask, and how much: tokens, rights, sites, limits."""
