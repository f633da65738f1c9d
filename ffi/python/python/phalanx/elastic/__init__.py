"""Training that goes on when ranks fall, and takes new ones in: `phalanx run --min-np N ...`.

    import phalanx

    phalanx.init()

    @phalanx.elastic.run
    def train(state):
        while state.step < 1000:
            phalanx.allreduce_(gradients)
            state.weights -= gradients
            state.step += 1
            state.commit()

    train(phalanx.elastic.ObjectState(weights=weights, step=0))

A rank that falls is noticed by nobody but the callbacks of `state.register_reset_callbacks`: calls return what the
ranks that are left give. Ranks that join come in at `state.commit()` or `state.check_host_updates()`, get the state,
and the function is called again on all. Without an elastic launcher the same program runs in a world that does not
change.
"""

from __future__ import annotations

from phalanx.elastic.errors import HorovodInternalError, HostsUpdatedInterrupt
from phalanx.elastic.runner import last_step, members, run, slot
from phalanx.elastic.sampler import ElasticSampler
from phalanx.elastic.state import ObjectState, State
from phalanx.steps import StepOutcome

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepOutcome",
    "last_step",
    "members",
    "run",
    "slot",
]
