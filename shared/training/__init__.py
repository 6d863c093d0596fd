"""Running blocks: stages, backward policies, losses, optimizers, schedules, and their state as data."""
