"""Cache prepared calls: the products of some weights for a number of rows."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from npurt.rknpu.device.arena import Arena
from npurt.rknpu.device.product import Product
from npurt.rknpu.device.quantise import Scheme
from npurt.rknpu.device.weights import RkPacked
from npurt.rknpu.driver.base import Driver

MAX_PREPARED = 1024  # calls

Prepared = list[tuple[Product, list[int]]]  # products of a call, with the indices of their weights


class PreparedCalls:
    """The prepared calls of an opened NPU, a cache that evicts the least recently used call.

    Attributes:
        made: The calls, by the numbers of their weights and the number of rows.
    """

    def __init__(self, driver: Driver) -> None:
        self.made: OrderedDict[tuple[tuple[int, ...], int], Prepared] = OrderedDict()
        self._driver = driver

    def take(self, weights: Sequence[RkPacked], rows: int) -> Prepared:
        """Return the call of *weights* for *rows* rows of x; prepare it if it is not cached.

        Raises:
            DeviceFull: The call does not fit the NPU's memory, even without other calls.
        """
        key = tuple([w.number for w in weights]), rows
        prepared = self.made.get(key)
        if prepared is None:
            while len(self.made) >= MAX_PREPARED:
                self._make_space()
            prepared = self.made[key] = self._prepare(weights, rows)
        self.made.move_to_end(key)
        return prepared

    def _prepare(self, weights: Sequence[RkPacked], rows: int) -> Prepared:
        """Return a product for each scheme and arena, with the indices of its weights."""
        prepared: Prepared = []
        try:
            for arena, which in _by_arena(weights):
                together = [weights[i] for i in which]
                product = Product(self._driver, together, rows, arena, self._make_space)
                prepared.append((product, which))
        except BaseException:
            _free(prepared)
            raise
        return prepared

    def _make_space(self) -> bool:
        """Drop the least recently used call; return False if there is no call."""
        if not self.made:
            return False
        _free(self.made.popitem(last=False)[1])
        return True

    def forget(self, number: int) -> None:
        """Drop the calls that use the weight with this number."""
        for key in [key for key in self.made if number in key[0]]:
            _free(self.made.pop(key))


def _free(prepared: Prepared) -> None:
    for product, _ in prepared:
        product.free()


def _by_arena(weights: Sequence[RkPacked]) -> Iterator[tuple[Arena, list[int]]]:
    """Yield each arena with the weights of one job: all in this arena, with one scheme."""
    for _, which in by_scheme(weights):
        for arena in dict.fromkeys([weights[i].arena for i in which]):
            assert arena, "a weight without memory"
            yield arena, [i for i in which if weights[i].arena is arena]


def by_scheme(weights: Sequence[RkPacked]) -> Iterator[tuple[Scheme, list[int]]]:
    """Yield each scheme with the indices of the weights that have it."""
    for scheme in dict.fromkeys(w.scheme for w in weights):
        yield scheme, [i for i, w in enumerate(weights) if w.scheme is scheme]
