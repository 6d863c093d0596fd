"""The trained model after its run: outputs and figures on any dataset, and files for other programs, each compared with it."""
