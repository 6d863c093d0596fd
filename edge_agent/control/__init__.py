"""The agent's control service: what an operator sees of a run and does to it."""
