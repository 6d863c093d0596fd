"""Profiles of several workers: chains, three tiers, and what both measure."""
