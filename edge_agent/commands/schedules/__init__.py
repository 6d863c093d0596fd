"""Schedules of a group on the command line: `edge-agent schedule`, and what `edge-agent simulate` shows of strategies."""
