"""Trials on several nodes: one agent on each node, and the group of them that the run talks to."""
