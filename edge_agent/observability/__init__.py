"""Observation of a run: figures, metrics, its time line, and its current activity."""
