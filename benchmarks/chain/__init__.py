"""Gain of a chain of machines, in live runs."""
