"""How many drafted tokens are probably accepted, learned from those that were."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

# the weight of a new observation: in the average of all requests, and in that of its own
SLOW = 0.02
FAST = 0.1


class Acceptance:
    """For each request and position of a draft, how often the token is right where all tokens
    before it were.

    A request starts from the average of all, and that from a usual value.
    """

    def __init__(self, usual: float, most: int):
        self.all = [usual] * most
        self.own: dict[object, list[float]] = {}

    def saw(self, request: object, accepted: int, drafted: int) -> None:
        """`accepted` of a request's `drafted` tokens were right."""
        own = self.own.setdefault(request, list(self.all))
        for at in range(min(accepted + 1, drafted)):
            right = at < accepted
            self.all[at] += SLOW * (right - self.all[at])
            own[at] += FAST * (right - own[at])

    def chances(self, request: object) -> list[float]:
        """For each position, the probability that the draft is right up to it."""
        return list(accumulate(self.own.get(request, self.all), mul))

    def keep(self, requests: set[object]) -> None:
        """Forget all but these."""
        self.own = {request: own for request, own in self.own.items() if request in requests}
