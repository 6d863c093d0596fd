"""Runs that are disturbed on purpose, and what must come out of them all the same."""
