"""Callbacks: a user's own code, and trackers, that are told a run's events while it trains."""
