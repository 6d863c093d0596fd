"""Training one session: its stream, the way of its batches, its checkpoints, and the changes of its deployment."""
