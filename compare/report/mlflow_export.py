"""Log results to an MLflow server or store: a run for each contender and batch size. Needs the extra `mlflow`."""

import importlib
from collections.abc import Sequence
from typing import Any

from compare.base.interface import Refused
from compare.report import long_form
from compare.report.long_form import Figure
from compare.results.model import Result

EXPERIMENT = "samestep"
_RESULT, _SIDE = "samestep.result", "samestep.contender"


def log(results: Sequence[Result], uri: str) -> int:
    """Log every figure that may be claimed, and return the number of new runs. A run that is there stays as it is.

    Raises:
        Refused: mlflow is not installed, or its store refuses.
    """
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ImportError:
        raise Refused("--mlflow needs mlflow; install it with: pip install 'samestep[mlflow]'") from None
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        return sum(_log_run(client, number, name, figures) for name, figures in _group(results).items())
    except mlflow.exceptions.MlflowException as error:
        raise Refused(f"--mlflow {uri}: {str(error).splitlines()[0]}") from error


def _group(results: Sequence[Result]) -> dict[tuple[str, str], list[Figure]]:
    """Return the figures by result and by what was measured."""
    groups = dict[tuple[str, str], list[Figure]]()
    for figure in long_form.list_figures(results):
        groups.setdefault((figure.row.result.id, figure.name), []).append(figure)
    return groups


def _log_run(client: Any, experiment: str, key: tuple[str, str], figures: Sequence[Figure]) -> bool:
    """Log one contender, and tell whether it is new."""
    identity, name = key
    row = figures[0].row
    result, spec, comparison = row.result, row.result.spec, row.comparison
    tags = {_RESULT: identity, _SIDE: name}
    known = client.search_runs([experiment], f"tags.`{_RESULT}` = '{identity}'")
    if any(run.data.tags.get(_SIDE) == name for run in known):
        return False
    tags |= {"samestep.version": result.environment.samestep or "", "samestep.created": result.created}
    if comparison is not None:
        tags |= {"samestep.verdict": comparison.verdict, "samestep.baseline": comparison.baseline}
    run = client.create_run(experiment, run_name=name, tags=tags).info.run_id
    batch = spec.batch_size if row.batch_size is None else row.batch_size
    values = {"workload": spec.workload, "task": spec.task, "precision": spec.precision, "batch_size": batch}
    values |= {"device": spec.device, "device_name": result.device_name, "contender": row.contender.name}
    values |= {} if spec.prune is None else {"prune": spec.prune}
    for parameter, value in values.items():
        client.log_param(run, parameter, value)
    for figure in figures:
        ends = {figure.metric: figure.value, f"{figure.metric}.low": figure.low, f"{figure.metric}.high": figure.high}
        for metric, value in ends.items():
            if value is not None:
                client.log_metric(run, metric, value)
    client.set_terminated(run)
    return True
