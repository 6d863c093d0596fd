"""Copies of a model that a trainer trains for an edge's calibration, each in a process of its own."""
