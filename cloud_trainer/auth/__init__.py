"""Callers of the trainer: tokens, tickets, and limits on the rate of calls."""
