"""Groups of devices at one trainer: their weights, their members, and the checkpoints of both."""
