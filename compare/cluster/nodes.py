"""The machines of a job that has not started, as far as they are known where it is submitted."""

from collections.abc import Mapping

from compare.base.arguments import LARGEST
from compare.base.interface import Refused
from compare.cluster.cluster import Cluster


class PlannedCluster(Cluster):
    """Machines on which a plan can be made and checked, but not carried out; this one need not be like them."""

    here = False

    def __init__(self, count: int, gpus: int, auto: str) -> None:
        """Take so many machines, `gpus` asked for on each (0: not known), and what `auto` means there."""
        super().__init__()
        self._count, self._asked, self._auto = count, gpus, auto

    @property
    def count(self) -> int:
        """How many machines there will be."""
        return self._count

    def device(self, name: str) -> str:
        """Return the device, `cpu` or `cuda`, that will be meant by a name out of `DEVICES`.

        Raises:
            Refused: `cpu`, where GPUs are asked for.
        """
        if name == "cpu" and self._asked:
            raise Refused(
                f"--gpus-per-node {self._asked} with --device cpu is not allowed: no GPU would be used; allowed: 0"
            )
        return self._auto if name == "auto" else name

    def gpus(self) -> Mapping[str, int]:
        """Return how many GPUs each machine will have."""
        return {f" with --gpus-per-node {self._asked}": self._asked} if self._asked else {"": LARGEST}
