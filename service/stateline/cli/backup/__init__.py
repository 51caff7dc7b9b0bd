"""`stateline backup`: make, list, check, delete and restore backups."""
