"""What a person calls: a run as a service and on a terminal, plans, time lines, models, and what is kept."""
