"""The papers' own algorithms, one file a paper: pure functions that a search, a group or a device on its way asks.

The engine of paper 000 is `engine`, and the partition of paper 001 the family `chain`.
"""
