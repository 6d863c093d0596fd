"""Generated hostile input: messages on every RPC of a real trainer, every kind of file that is read, and placements."""
