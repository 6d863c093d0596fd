"""The agent's control service: the view and the actions of an operator on a run."""
