"""Helpers that several tests need; none of them is a test."""
