"""The choice of a run's deployment: measurements, the engine's input, and the loop that asks the engine."""
