"""Plans and schedules on the command line: of a link, a chain, tiers and groups, with their options."""
