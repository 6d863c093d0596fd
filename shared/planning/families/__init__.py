"""Families of layouts: what can be planned. Each lists its layouts, or finds the best of them."""
