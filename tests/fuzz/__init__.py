"""Generated hostile input: messages on every RPC of a real trainer, and every kind of file that is read."""
