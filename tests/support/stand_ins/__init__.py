"""Stand-ins for one side: agents as small as a test needs, a trainer that serves links alone, an ear on the wire."""
