"""List, drain and forget nodes, and make their certificates."""
