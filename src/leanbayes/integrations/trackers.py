"""Trackers for `fit`: MLflow and Weights & Biases."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from .. import checks
from ..errors import TrainingError
from ..optional import require


class MLflowTracker:
    """Logs the numbers of an epoch as metrics of an MLflow run, for ``fit(trackers=[...])``.

    experiment: its name; it is made if there is none. uri: a server, a database such as "sqlite:///runs.db" or a
    folder; MLflow's own default if None (MLFLOW_TRACKING_URI). run_id: a run that is to be continued, such as the
    `run_id` of this object in an earlier fit; otherwise each fit is a run of its own.

    `pip install 'leanbayes[trackers]'`.
    """

    def __init__(
        self,
        experiment: str = "leanbayes",
        *,
        uri: str | None = None,
        name: str | None = None,
        run_id: str | None = None,
    ) -> None:
        require("mlflow", "trackers", "MLflowTracker")
        checks.instance("experiment", experiment, str, "the name of an experiment")
        self.experiment, self.uri, self.name, self.run_id = experiment, uri, name, run_id
        self.continues = run_id is not None
        self.client: Any = None

    def start(self, step: int) -> None:
        mlflow = require("mlflow", "trackers", "MLflowTracker")
        try:
            client = mlflow.MlflowClient(tracking_uri=self.uri)
            if self.continues:
                client.update_run(self.run_id, status="RUNNING")
            else:
                found = client.get_experiment_by_name(self.experiment)
                experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
                self.run_id = client.create_run(experiment, run_name=self.name).info.run_id
        except Exception as error:  # whatever its store or server raises
            where = checks.short(self.uri or os.environ.get("MLFLOW_TRACKING_URI", "MLflow's default"))
            raise TrainingError(
                f"MLflowTracker: expected a store that answers at {where}, received: {error}"
            ) from error
        self.client = client

    def log(self, values: dict[str, float], step: int) -> None:
        metric, now = require("mlflow", "trackers", "MLflowTracker").entities.Metric, int(1000 * time.time())
        self.client.log_batch(self.run_id, metrics=[metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id)
        self.client = None


class WandbTracker:
    """Logs the numbers of an epoch to Weights & Biases, for ``fit(trackers=[...])``.

    mode: "offline" writes into the folder alone, and ``wandb sync`` uploads it later; "online" needs a login.
    run_id: a run that is to be continued.

    `pip install 'leanbayes[trackers]'`.
    """

    def __init__(
        self,
        project: str = "leanbayes",
        *,
        folder: str | os.PathLike[str] = ".",
        mode: Literal["offline", "online"] = "offline",
        name: str | None = None,
        run_id: str | None = None,
    ) -> None:
        require("wandb", "trackers", "WandbTracker")
        checks.instance("project", project, str, "the name of a project")
        checks.one_of("mode", mode, ("offline", "online"))
        self.folder: Path = checks.path("folder", folder)
        self.project, self.mode, self.name, self.run_id = project, mode, name, run_id
        self.run: Any = None

    def start(self, step: int) -> None:
        wandb = require("wandb", "trackers", "WandbTracker")
        try:
            self.run = wandb.init(
                project=self.project, name=self.name, dir=str(self.folder), mode=self.mode, id=self.run_id,
                resume="allow", reinit="create_new", settings=wandb.Settings(silent=True, console="off"),
            )  # fmt: skip
        except Exception as error:  # of its service or its server
            raise TrainingError(
                f"WandbTracker: a run cannot be started: {error}; mode='offline' needs no server"
            ) from error

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
        self.run = None
