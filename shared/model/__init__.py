"""Dividing a module into a chain of blocks. torch, nothing of gRPC."""
