"""What a chain of machines is worth, in live runs."""
