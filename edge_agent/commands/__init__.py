"""Commands of the edge agent: a run as a service and on a terminal, plans, time lines, models, and kept files."""
