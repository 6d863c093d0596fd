"""What the two sides must agree on before they talk."""

PROTOCOL_VERSION = 3
"""One higher with every change of the contract after which an edge or a trainer from before it would be misunderstood, or would
misunderstand (docs/architecture.md, "The contract")."""
