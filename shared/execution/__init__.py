"""Carries out a worker's program of a placement, step by step. Knows nothing of networks: who drives it moves what crosses."""
