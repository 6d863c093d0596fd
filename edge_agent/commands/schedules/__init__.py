"""Schedules of a group on the command line: what `edge-agent plan` and `edge-agent simulate` show of strategies."""
