"""Logs and metrics, the same on both sides."""
