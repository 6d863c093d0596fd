"""Gains of planning and adapting, computed in the simulator and not timed on a link."""
