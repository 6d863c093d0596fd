"""Plans on the command line: of a link, a chain and tiers, with their options."""
