"""A task: its life, its stores, and what it does with records."""
