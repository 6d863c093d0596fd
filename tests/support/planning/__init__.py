"""Profiles, links and runs that tests of planning, of the engine and of the decision loop share."""
