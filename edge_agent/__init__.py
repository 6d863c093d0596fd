"""The edge agent: keeps the data, runs the first blocks, and trains with the cloud's help. Programs import `isthmus`."""
