"""A first run on this machine: a trainer and an agent; beside it files to try the other commands with."""
