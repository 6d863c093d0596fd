"""Runs in virtual time over traces of links: of two workers, of any layout, and planners beside each other."""
