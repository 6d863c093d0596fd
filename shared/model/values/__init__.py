"""The tensors that blocks hand on: which block made each, of what, who reads it, and what can be read off it."""
