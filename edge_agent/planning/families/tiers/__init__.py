"""The family of three tiers: divisions of the layers and samples of a step among them (paper 004)."""
