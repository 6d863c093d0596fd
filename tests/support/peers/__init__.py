"""Peers that a trainer should not trust: what they claim, how they damage messages, and how they come."""
