"""Models as people write them for their own work, of many kinds; none knows anything of blocks or placements."""
