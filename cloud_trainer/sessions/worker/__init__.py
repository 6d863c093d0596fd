"""The part of one worker in a session, which this trainer runs."""
