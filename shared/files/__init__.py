"""Files that others cannot read, and files that are there whole or not at all."""
