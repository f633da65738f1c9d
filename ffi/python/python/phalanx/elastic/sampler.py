"""Which samples a rank takes from a data set, across any change of ranks.

An epoch is a line of sample numbers in an order that the seed and the epoch give. What is left of it is dealt out in
turns, one sample to each rank, so that every rank has a stream of the same length; `record_batch` tells how far all of
them have come. When it finds that a rank fell, what that one was dealt and did not contribute goes back to the front of
the line, and the line is dealt out anew to those that are left, behind the samples that they have taken already. So a
sample counts at most once in an epoch. All ranks deal alike, since they agree on who contributed; nothing is sent.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Sized
from typing import Any

from phalanx import _native
from phalanx.elastic.runner import members, slot
from phalanx.errors import InvalidArgumentError
from phalanx.steps import ElasticCommunicator
from phalanx.world import world

__all__ = ["ElasticSampler"]


class _Deal:
    """A line dealt out: sample `k` of member `m` stands at `k * len(slots) + m`."""

    def __init__(self, returned: list[int], taken: int, length: int, slots: tuple[int, ...]) -> None:
        # The line: samples that came back, then the epoch's order from `taken` on.
        self.returned = returned
        self.taken = taken
        self.slots = slots
        # How many samples each member is dealt, has taken, and has contributed.
        self.each = (len(returned) + length - taken) // len(slots)
        self.handed = 0
        self.recorded = 0
        self.gone: set[int] = set()

    def rest(self, at: int) -> tuple[list[int], int]:
        """The line from a place on."""
        back = len(self.returned)
        return self.returned[at:], self.taken + max(at - back, 0)


class ElasticSampler:
    """The numbers of this rank's samples, for a `torch.utils.data.DataLoader` or any loop.

    After each training step call `record_batch` with the number of samples that this rank gave, before
    `state.commit()`; at the end of an epoch call `set_epoch` with the next one's number. Give the sampler to the state,
    so that its progress is saved and sent with it. Loaders must take samples alike on every rank.

    Samples that do not come out even, fewer than there are ranks, are left out of an epoch, and so is what a rank took
    that falls in an iteration's last step; `remaining_indices` has them, and another iteration takes them up.

    Args:
        dataset: What the samples are of: something with a length, or the length.
        shuffle: Whether the order is another in each epoch.
        seed: Of the order; the same on every rank.
    """

    def __init__(self, dataset: Sized | int, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        self._returned: list[int] = []
        self._taken = 0
        # Those that this rank has begun to take from, the last of them the one that it takes from now.
        self._deals: list[_Deal] = []
        self._order: array.array[int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch. The one under way goes on as it was."""
        if epoch != self.epoch:
            self._begin(epoch, [], 0)

    def _begin(self, epoch: int, returned: list[int], taken: int) -> None:
        if epoch != self.epoch:
            self._order = None
        self.epoch, self._returned, self._taken = epoch, returned, taken
        self._deals = []

    def _line(self) -> array.array[int]:
        if self._order is None:
            seed = self.seed if self.shuffle else None
            self._order = array.array("I", _native.epoch_order(self._length, seed, self.epoch))
        return self._order

    def _at(self, deal: _Deal, member: int, number: int) -> int:
        place = number * len(deal.slots) + member
        back = len(deal.returned)
        return deal.returned[place] if place < back else self._line()[deal.taken + place - back]

    def __iter__(self) -> Iterator[int]:
        """This rank's samples of what is left of the epoch."""
        self._begin(self.epoch, *self._left())
        deal = _Deal(self._returned, self._taken, self._length, members())
        deals = self._deals = [deal]
        own = slot()
        while True:
            while deal.handed < deal.each:
                deal.handed += 1
                yield self._at(deal, deal.slots.index(own), deal.handed - 1)
                if deals is not self._deals:
                    # The epoch, or the state, is another.
                    return
            if deals[-1] is deal:
                return
            deal = deals[-1]

    def __len__(self) -> int:
        """How many samples of what is left this rank gets."""
        returned, taken = self._left()
        return (len(returned) + self._length - taken) // len(members())

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """The training step counted, with the next `batch_size` samples of each rank that contributed."""
        communicator = world()
        contributors = members()
        if isinstance(communicator, ElasticCommunicator) and communicator.training_step is not None:
            contributors = communicator.training_step.contributors
        back: list[int] = []
        is_cut = False
        for deal in self._deals:
            fell = [at for at, one in enumerate(deal.slots) if one not in contributors and at not in deal.gone]
            if fell:
                is_cut = True
                deal.gone.update(fell)
                back += [self._at(deal, at, k) for k in range(deal.recorded, deal.handed) for at in fell]
            count = min(batch_size, deal.handed - deal.recorded)
            deal.recorded += count
            batch_size -= count
        if is_cut:
            self._deal_again(back)
        while len(self._deals) > 1 and self._deals[0].recorded == self._deals[0].each:
            del self._deals[0]

    def _deal_again(self, back: list[int]) -> None:
        last = self._deals[-1]
        returned, taken = last.rest(last.handed * len(last.slots))
        last.each = last.handed
        stay = tuple(one for at, one in enumerate(last.slots) if at not in last.gone)
        self._deals.append(_Deal(back + returned, taken, self._length, stay))

    def _left(self) -> tuple[list[int], int]:
        """What does not count yet: samples that come first, and where the epoch's order goes on behind them."""
        if not self._deals:
            return self._returned, self._taken
        *before, last = self._deals
        taken_up = [
            self._at(deal, at, k)
            for deal in before
            for k in range(deal.recorded, deal.each)
            for at in range(len(deal.slots))
            if at not in deal.gone
        ]
        returned, taken = last.rest(last.recorded * len(last.slots))
        return taken_up + returned, taken

    @property
    def remaining_indices(self) -> list[int]:
        """The samples of the epoch that do not count yet."""
        returned, taken = self._left()
        return returned + list(self._line()[taken:])

    @property
    def processed_indices(self) -> list[int]:
        """The samples of the epoch that count, as far as `record_batch` was told."""
        left = set(self.remaining_indices)
        return [sample for sample in self._line() if sample not in left]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what is left of it: the same on every rank."""
        returned, taken = self._left()
        return {
            "epoch": self.epoch,
            "taken": taken,
            "returned": list(returned),
            "order": [self._length, self.shuffle, self.seed],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state. Iterations that are under way end."""
        length, shuffle, seed = state_dict["order"]
        if length != self._length:
            raise InvalidArgumentError(f"the state of a sampler over {length} samples given, {self._length} expected")
        taken, returned = int(state_dict["taken"]), [int(sample) for sample in state_dict["returned"]]
        if not 0 <= taken <= length or not all(0 <= sample < length for sample in returned):
            raise InvalidArgumentError("this is not the state of a sampler: it has samples that do not exist")
        if (shuffle, seed) != (self.shuffle, self.seed):
            self.shuffle, self.seed, self._order = shuffle, seed, None
        self._begin(int(state_dict["epoch"]), returned, taken)
