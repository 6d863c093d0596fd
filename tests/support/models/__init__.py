"""Models, blocks, losses and data that are unusual in one way each, named by tests as a user names their own."""
