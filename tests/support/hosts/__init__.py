"""Machines and containers in which tests install what deploy/ ships."""
