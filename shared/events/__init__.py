"""Events: what happens in a worker and to calls, as data. `Events` brings each event to its subscribers.

`worker` has the events of a worker's steps, `calls` those of calls. Those of a whole run are in
`edge_agent.training.events`.
"""

from shared.events.dispatcher import Emit, Event, Events, ignore

__all__ = ["Emit", "Event", "Events", "ignore"]
