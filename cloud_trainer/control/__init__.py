"""What an operator sees of a trainer and does to it."""
