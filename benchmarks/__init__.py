"""What we claim, measured."""
