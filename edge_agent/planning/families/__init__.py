"""Families of layouts: each lists its layouts, or finds the best of them."""
