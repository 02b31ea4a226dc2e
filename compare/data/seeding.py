"""What the run's seed decides: random streams, and the order in which a training set is seen in each epoch."""

import hashlib
import json
from dataclasses import replace

import numpy as np

from compare.base.interface import Batch, Refused


def generator(domain: str, seed: int, *keys: int | str) -> np.random.Generator:
    """Return NumPy's PCG64 generator for one use of the run's seed.

    Streams of different domains (`weights`, `split`, `shuffle`, ...), seeds or keys never coincide, whatever the
    values are: SHA-256 of the unambiguous list [domain, seed, *keys] is the entropy of the `numpy.random.SeedSequence`.
    """
    text = json.dumps(["samestep", domain, seed, *keys])
    entropy = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def epoch_batches(train: Batch, *, seed: int, epoch: int, batch_size: int, most: int | None = None) -> list[Batch]:
    """Return the full batches of one shuffled epoch: images [batch_size, H, W, C], labels [batch_size], contiguous.

    Only the first `most` of them, if that is given.

    The order depends on the number of labels, `seed` and `epoch` (from 0) only. Images that fill no batch at the
    epoch's end are left out of it, other ones in every epoch. Where `train` has several views of its images
    (`compare.data.datasets.Dataset`), each epoch takes the next, and after the last the first again.

    Raises:
        Refused: `batch_size` is below 1 or above the number of training images.
    """
    count = len(train.labels)
    if not 1 <= batch_size <= count:
        raise Refused(f"batch size {batch_size} for {count} training images; allowed: 1 to {count}")
    order = generator("shuffle", seed, epoch).permutation(count)
    view = train.images[epoch % (len(train.images) // count) * count :][:count]
    batches: list[Batch] = []
    for start in range(0, count - batch_size + 1, batch_size)[:most]:
        chosen = order[start : start + batch_size]
        images, labels = np.ascontiguousarray(view[chosen]), np.ascontiguousarray(train.labels[chosen])
        batches.append(Batch(images, labels, train.levels))
    return batches


def reorder(batch: Batch, parts: int, random: np.random.Generator) -> Batch:
    """Return a batch in another order within each of `parts` equal parts, which may be taken apart from one another.

    What is trained on it is the same function, if that treats all images of a part alike; sums over them are rounded
    otherwise.
    """
    size = len(batch.labels) // parts
    order = np.concatenate([part * size + random.permutation(size) for part in range(parts)])
    return replace(batch, images=batch.images[order], labels=batch.labels[order])
