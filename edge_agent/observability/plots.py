"""Common parts of the pictures of this side. Drawing needs matplotlib, which a device that only trains need not have."""

NO_MATPLOTLIB = "needs matplotlib, which is not installed; install it with: pip install 'isthmus[plots]'"
"""End of a sentence that begins with the feature that needs it."""
