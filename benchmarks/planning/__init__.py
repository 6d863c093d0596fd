"""What planning and adapting are worth, computed in the simulator and not timed on a link."""
