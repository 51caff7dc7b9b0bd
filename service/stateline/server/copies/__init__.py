"""Files of stores that one node sends to another, so that a standby there need not read all of its changelogs."""
