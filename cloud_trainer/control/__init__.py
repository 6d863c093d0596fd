"""The operator's view of a trainer, and the actions that an operator may take."""
