"""The contract that the two sides must agree on before they talk."""

PROTOCOL_VERSION = 25
"""One higher with every change of the contract after which an edge or a trainer from before it would be misunderstood, or would
misunderstand (docs/architecture.md, "The contract")."""

NO_VERSION = 0
"""A version that nobody speaks: a peer that names it opens nothing, and is told the version in the refusal."""
NO_SESSION = "doctor"
"""An id that no session has, for a caller who only wants to know whether the trainer would let it in."""
