"""Rivals of the product's planners, and how they fare over traces of links. `benchmarks/pyproject.toml` declares them, so that
`edge-agent plan` and `simulate` find them where the benchmarks are installed.
"""
