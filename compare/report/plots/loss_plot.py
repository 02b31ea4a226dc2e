"""Training losses: of every step with the one-ulp envelope after `samestep agree`, else of every epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compare.base.interface import Array
from compare.report import sentences
from compare.report.palette import find_light
from compare.report.plots.canvas import (
    DASHES,
    MOST_CONTENDERS,
    Absent,
    Axes,
    Figure,
    Picture,
    choose_colour,
    keep_drawable,
    make_panels,
    name_limit,
    name_lines,
    shorten,
    write_plain_powers,
)
from compare.results.model import Result

_LOSS_INCHES, _DISTANCE_INCHES, _AXIS_INCHES = 1.5, 1.1, 0.45
_MOST_SPAN = 1e12  # quotient of the largest and the smallest distance drawn

_LEAST_SPAN = 0.01
Curves = Mapping[str, Array]
"""Contender to its loss of each step or epoch, NaN if there is none to draw."""


def make_picture(result: Result) -> Picture | Absent:
    """Return the picture of the losses, with their envelope if whole runs were certified."""
    spec = result.spec
    epochs = sentences.count_noun(spec.epochs, "epoch")
    basis = f"Setting: {sentences.describe_setting(result)}, {epochs}, seed {spec.seed}; one training run each (n = 1)."
    trajectory = result.agreement.trajectory
    curves = {name: _curve(losses.loss) for name, losses in trajectory.items()}
    if shown := _shown(curves):
        envelopes = {name: _curve(trajectory[name].envelope) for name in shown}
        caption = (
            "Training loss of every step. Bands: the one-ulp envelope. It is the largest distance so far to a run with "
            "initial weights moved by one ulp and with another order of the batches. Below: the largest distance so "
            "far between contenders, and the envelopes themselves."
        ) + name_limit(len(curves))
        return Picture("loss", "Loss curves with envelope", caption, basis, lambda: _certified(shown, envelopes))
    trained = {contender.name: contender.training.loss for contender in result.contenders if contender.training}
    if shown := _shown({name: _curve(losses) for name, losses in trained.items()}):
        caption = "Training loss, mean of each epoch. Only samestep agree measures the one-ulp envelope."
        caption += name_limit(len(trained))
        return Picture("loss", "Loss curves", caption, basis, lambda: _trained(shown))
    return Absent("no training loss was recorded, or none is finite")


def _curve(values: Sequence[float | None]) -> Array:
    return np.array([keep_drawable(value) for value in values], np.float64)


def _shown(curves: Curves) -> Curves:
    """Return the curves with finite losses, at most as many as a picture can hold."""
    return {name: each for name, each in list(curves.items())[:MOST_CONTENDERS] if np.isfinite(each).any()}


def _trained(curves: Curves) -> Figure:
    figure, (axes,) = make_panels([_LOSS_INCHES], _AXIS_INCHES)
    _draw(axes, curves)
    axes.set_ylabel("training loss")
    axes.set_xlabel("epoch")
    return figure


def _certified(curves: Curves, envelopes: Curves) -> Figure:
    figure, (top, bottom) = make_panels([_LOSS_INCHES, _DISTANCE_INCHES], _AXIS_INCHES)
    for index, (name, losses) in enumerate(curves.items()):
        width = envelopes[name]
        top.fill_between(
            _steps(losses), losses - width, losses + width, color=choose_colour(index), alpha=0.2, linewidth=0
        )
    _draw(top, curves)
    top.set_ylabel("training loss")
    top.tick_params(labelbottom=False)
    lines = {
        f"envelope: {shorten(name)}": (each, choose_colour(index))
        for index, (name, each) in enumerate(envelopes.items())
    }
    baseline, *others = curves
    for name in others:
        if curves[name].shape == curves[baseline].shape:
            distance = np.fmax.accumulate(np.abs(curves[name] - curves[baseline]))
            lines[f"{shorten(name)} - {shorten(baseline)}"] = distance, find_light("ink")
    _draw_distances(bottom, lines)
    bottom.set_xlim(top.get_xlim())
    return figure


def _draw(axes: Axes, curves: Curves) -> None:
    """Draw losses so that a covered curve stays visible: the first is wide, later ones are dashed."""
    from matplotlib.ticker import LogLocator

    least, most = (float(bound([bound(each) for each in curves.values()])) for bound in (np.nanmin, np.nanmax))
    if most - least < _LEAST_SPAN * abs(most):  # only rounding differs, which the axis would blow up
        axes.set_ylim(most - _LEAST_SPAN * abs(most), most + _LEAST_SPAN * abs(most))
        axes.ticklabel_format(useOffset=False)
    elif least > 0:
        axes.set_yscale("log", subs=[2, 5])
        axes.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5], numticks=8))
        write_plain_powers(axes)
    lines: list[Any] = []
    for index, (name, losses) in enumerate(curves.items()):
        last = int(np.flatnonzero(np.isfinite(losses))[-1])
        lost = "" if last == losses.size - 1 else f", not finite from {last + 2}"
        (line,) = axes.plot(
            _steps(losses),
            losses,
            linestyle=DASHES[index % len(DASHES)],
            color=choose_colour(index),
            linewidth=1.1 if index else 3.2,
            marker="o" if np.isfinite(losses).sum() == 1 else "",  # a single point has no line
            label=f"{shorten(name)}{lost}",
        )
        lines.append(line)
    _whole_numbers(axes)
    name_lines(axes, lines)


def _draw_distances(axes: Axes, lines: Mapping[str, tuple[Array, str]]) -> None:
    """Draw distances on a logarithmic axis that has 0 at its lower end."""
    positive = np.concatenate([each[each > 0] for each, _ in lines.values()])
    least = max(positive.min(), positive.max() / _MOST_SPAN) if positive.size else 1.0
    axes.set_yscale("symlog", linthresh=float(least))
    write_plain_powers(axes)
    drawn = [
        axes.plot(_steps(values), values, linestyle=DASHES[index % len(DASHES)], color=shown, label=name)[0]
        for index, (name, (values, shown)) in enumerate(lines.items())
        if np.isfinite(values).any()
    ]
    axes.set_ylim(0, 3 * axes.get_ylim()[1])
    axes.set_ylabel("distance")
    axes.set_xlabel("step")
    _whole_numbers(axes)
    name_lines(axes, drawn)


def _steps(values: Array) -> Array:
    return np.arange(1, values.size + 1)


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
