"""Finding the blocks of a module: pieces of its trace, the seams between them, and the comparison with the module."""
