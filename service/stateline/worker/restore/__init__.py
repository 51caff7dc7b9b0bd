"""Topics read into stores: restores, global tables, format upgrades."""
