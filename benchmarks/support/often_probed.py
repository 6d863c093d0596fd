"""The agent of `benchmarks.support.live`, which probes candidates ten times as often and stays with its trainer: what probes
cost a run shows so."""

from benchmarks.support import live
from edge_agent.adaptation.candidates import probes
from edge_agent.adaptation.candidates.choice import TrainerChoice

OFTENER = 10.0

if __name__ == "__main__":
    for name in ("PROBE_SECONDS", "MEASURE_SECONDS", "SETTLED_SECONDS"):
        setattr(probes, name, getattr(probes, name) / OFTENER)
    setattr(TrainerChoice, "_is_resting", lambda *_: True)  # noqa: B010 - what a process replaces is no assignment to a type
    live.main()
