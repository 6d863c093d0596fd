"""Helpers of several measurements: processes, networks to train, and figures as people read them."""
