"""The execution of a worker's program of a placement, step by step. Knows nothing of networks: its caller moves the tensors."""
