"""The RPCs of the trainer: their permitted callers and messages, and the way of a batch."""
