"""The RPCs of the trainer: who may call them, what may arrive, and the way of a batch."""
