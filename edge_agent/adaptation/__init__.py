"""Which deployment a run should have now: what is measured, what the engine plans with, and the loop that asks it."""
