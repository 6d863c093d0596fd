"""Training in an open session: the way of its batches, its stream, its checkpoints, and the changes of its deployment."""
