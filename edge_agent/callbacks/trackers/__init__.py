"""Trackers, a file each: callbacks that keep a run's figures where other programs show them."""
