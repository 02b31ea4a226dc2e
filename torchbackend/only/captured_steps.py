"""Several training steps captured as one CUDA graph: the knob `graph-capture`."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from torchbackend import memory
from torchbackend.only.memory_order import select_batch

# DistributedDataParallel orders its buckets in its first steps (pytorch.org, CUDA semantics).
_WARM_UP_STEPS, _WARM_UP_STEPS_OF_DDP = 3, 11

_Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class CapturedSteps:
    """A CUDA graph of `count` training steps over batches [P, N, ...].

    If the graph takes every batch equally often, it reads the batches in place. Otherwise the device counts the
    position and copies each batch.

    Args:
        step: trains one step on (images, labels) and returns its loss.
        snapshot: returns a function that restores the training state, because capture first takes warm-up steps.
        images: [P, N, C, H, W]; later batches are copied into them.
        labels: [P, N] or [P, N, H, W]; likewise.
        count: the number of captured steps.
    """

    def __init__(
        self,
        step: _Step,
        snapshot: Callable[[], Callable[[], None]],
        images: torch.Tensor,
        labels: torch.Tensor,
        count: int,
    ) -> None:
        self.images, self.labels = images, labels
        self._reads_in_place = count % len(labels) == 0
        self._position = torch.zeros(1, dtype=torch.int64, device=images.device)
        restore = snapshot()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for index in range(_WARM_UP_STEPS_OF_DDP if dist.is_initialized() else _WARM_UP_STEPS):
                self._train(step, index)
        torch.cuda.current_stream().wait_stream(stream)
        restore()
        del restore  # frees the copy of the state, because capturing changes no state
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog thread makes calls that would end a capture which forbids them in every thread.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            memory.reset_peaks(images.device)  # the warm-up's cache is free again
            self._losses = torch.stack([self._train(step, index) for index in range(count)])

    def refill(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Replace the batches by others of the same shape."""
        self.images.copy_(images)
        self.labels.copy_(labels)

    def can_start(self, position: int) -> bool:
        """Tell whether the graph may start at that batch: a graph that reads in place starts at batch 0."""
        return position == 0 or not self._reads_in_place

    def __call__(self, start: int) -> torch.Tensor:
        """Train the captured steps from batch `start`, where the graph `can_start`, and return their losses."""
        self._position.fill_(start)
        self._graph.replay()
        return self._losses.clone()

    def _train(self, step: _Step, index: int) -> torch.Tensor:
        if self._reads_in_place:
            return step(self.images[index % len(self.labels)], self.labels[index % len(self.labels)])
        images, labels = (select_batch(pool, self._position) for pool in (self.images, self.labels))
        self._position.add_(1).remainder_(len(self.labels))
        return step(images, labels)
