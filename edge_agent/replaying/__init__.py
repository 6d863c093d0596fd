"""The record of a run, written while it trains, and the command that repeats the run from it."""
