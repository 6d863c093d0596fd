"""Planners: from a profile, a link and today's cut to the deployment to use. Pure functions, each in a file of its own."""
