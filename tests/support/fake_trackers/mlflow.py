"""Stands in for MLflow: the calls that the recipe of docs/callbacks.md makes, kept in a list."""

CALLS: list[tuple] = []


def set_tracking_uri(uri):
    CALLS.append(("uri", uri))


def set_experiment(experiment_name):
    CALLS.append(("experiment", experiment_name))


def start_run(*, run_name):
    CALLS.append(("run", run_name))


def log_params(params):
    CALLS.append(("params", params))


def log_metrics(metrics, step=None):
    CALLS.append(("metrics", metrics, step))
