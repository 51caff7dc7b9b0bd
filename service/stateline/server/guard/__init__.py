"""The guard of requests: tokens, rights, sites, limits."""
