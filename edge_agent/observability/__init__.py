"""What a run shows of itself: figures, metrics, its time line, and what it is doing."""
