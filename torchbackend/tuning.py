"""How a training step is turned into a program: the knobs' mechanisms."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Step = Callable[..., tuple[Any, Any]]

_WARM_UP_STEPS = 3


def compiled(forward: Step, knobs: Mapping[str, Any]) -> Step:
    """Return `forward` compiled by TorchInductor if the knobs say so."""
    return torch.compile(forward, dynamic=False) if knobs["compile"] else forward


class Several:
    """A CUDA graph of `steps-per-dispatch` training steps over batches [P, N, ...], read at a position on the device.

    Args:
        step: trains one step on (images, labels) and returns its loss.
        snapshot: returns a function that puts the training state back in place; capturing has to warm up first.
        images: [P, N, C, H, W], labels: [P, N]; kept, so that new batches are copied into them.
    """

    def __init__(
        self,
        step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        snapshot: Callable[[], Callable[[], None]],
        images: torch.Tensor,
        labels: torch.Tensor,
        count: int,
    ) -> None:
        self.images, self.labels = images, labels
        self.position = torch.zeros((), dtype=torch.int64, device=images.device)
        restore = snapshot()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                step(images[0], labels[0])
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            losses = [self._one(step) for _ in range(count)]
            self._losses = torch.stack(losses)
        restore()
        self.position.zero_()

    def __call__(self) -> torch.Tensor:
        """Train the captured steps and return their losses."""
        self._graph.replay()
        return self._losses.clone()

    def _one(self, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        images, labels = (pool.index_select(0, self.position.view(1)).squeeze(0) for pool in (self.images, self.labels))
        loss = step(images, labels)
        self.position.add_(1).remainder_(len(self.labels))
        return loss
