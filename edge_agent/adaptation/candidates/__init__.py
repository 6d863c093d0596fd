"""Several trainers of which a run chooses one: probes of them, the first one, and the choice while training goes on."""
