"""The keeper: in a run among candidates, the trainer that keeps the replicas of the present one, and would take over.

It is a member without blocks. Without a keeper, this device keeps the replicas.
"""

from contextlib import aclosing

import structlog

from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.sessions.admission import admit
from edge_agent.sessions.links_between import missing_links
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stand_ins import successors
from shared.errors import IsthmusError
from shared.placement import Link, Placement

_log = structlog.get_logger(__name__)


async def appoint_keeper(session: OpenSession, placement: Placement) -> None:
    """Have a keeper under a placement of one trainer, and another one where it is away or has blocks itself.

    A run whose configuration has a placement has none.

    While nobody has compared the candidates, the first in the list that answers is the keeper, or one that is a member
    already, as after a start. Its operator must allow the address of the present trainer.
    """
    members, config = session.members, session.experiment.config
    holding = trainers_with_blocks(placement)
    if config.placement.given or config.checkpoints.replicas != 1 or len(holding) != 1:
        members.appoint(None)
        return
    if members.keeper is not None and members.keeper not in holding:
        return
    members.appoint(None)
    others = [trainer.name for trainer in config.all_trainers if trainer.name not in holding]
    if not members.ranking:
        others.sort(key=lambda name: name not in members)
    async with aclosing(successors(session, others)) as would:
        async for name in would:
            try:
                for unreachable in (await missing_links(session, [Link(name, holding[0])])).values():
                    raise unreachable
                await admit(session, name)
            except IsthmusError as failure:
                _log.warning("a candidate keeps no replicas", trainer=name, reason=str(failure))
                continue
            members.appoint(name)
            _log.info("a candidate keeps replicas", trainer=name, of=holding[0])
            return
