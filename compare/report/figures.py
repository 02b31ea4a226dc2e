"""Figures as files, drawn without a display."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def loss_curves(trajectory: Mapping[str, Any], path: Path) -> None:
    """Draw every contender's training loss with its one-ulp envelope as a band; the file's ending says the format.

    Args:
        trajectory: contender to `loss` and `envelope`, one number a step (None where not finite).
        path: for example DIR/trajectory.svg.
    """
    # Here, because matplotlib takes a second to import and most commands draw nothing.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    styles = ("-", "--", ":", "-.")
    curves = {name: np.array(each["loss"], np.float64) for name, each in trajectory.items()}
    for (name, losses), style in zip(curves.items(), styles * len(curves), strict=False):
        steps = np.arange(1, len(losses) + 1)
        top.plot(steps, losses, style, label=name, linewidth=1)
        bottom.plot(steps, np.array(trajectory[name]["envelope"], np.float64), style, label=f"{name}, one-ulp envelope")
    baseline = next(iter(curves))
    for name, losses in list(curves.items())[1:]:
        distance = np.maximum.accumulate(np.abs(losses - curves[baseline]))
        bottom.plot(np.arange(1, len(losses) + 1), distance, color="black", label=f"{name} against {baseline}")
    top.set_ylabel("training loss")
    bottom.set_ylabel("largest distance so far")
    bottom.set_xlabel("step")
    bottom.set_yscale("symlog", linthresh=1e-9)
    top.legend()
    bottom.legend(fontsize="small")
    figure.savefig(path)  # pyright: ignore[reportUnknownMemberType] -- matplotlib leaves its path type open
