"""Runs in virtual time over traces of links, of any layout, and planners beside each other."""
