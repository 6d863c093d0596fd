"""What the two sides must agree on before they talk."""

PROTOCOL_VERSION = 1
"""Raised when an edge of one version and a trainer of another would misunderstand each other."""
