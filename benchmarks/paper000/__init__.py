"""The figures of training in paper 000, each a command: `python -m benchmarks.paper000 FIGURE --data FOLDER`.

The loaders of its tasks (`photographs`, `texts`, `movies`, `views`) and its networks (`networks`) are such as a user
writes: a configuration can name them, as `benchmarks.paper000.texts:reviews`.
"""
