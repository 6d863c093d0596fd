"""Cost of staleness and compression in accuracy: split training of small networks on CIFAR-10, simulated in one
process.

`python -m benchmarks.learning --help` runs it, `python -m benchmarks.learning.table` draws the tables. It needs torch,
numpy and Pillow and no package of a service, so that it also runs on a machine with a GPU and without gRPC.
"""
