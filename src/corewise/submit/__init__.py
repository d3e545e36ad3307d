"""Submit studies to a batch system: scripts, jobs of a store, and their progress."""
