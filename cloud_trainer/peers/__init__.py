"""Links of this trainer to other trainers of a session."""
