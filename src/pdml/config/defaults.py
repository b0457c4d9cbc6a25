"""The defaults: a function of environment, method and preset."""

from dataclasses import asdict

from pdml.config.fields import change, different, get, read_by
from pdml.config.methods import METHODS, PRESETS, ByTask, Changes, readers
from pdml.config.schema import AgentConfig, AmpoConfig, Config, RolloutConfig, RunConfig, Settings
from pdml.config.tasks import Task, listed_task
from pdml.core.errors import UserError, nearest


def defaults(env: str, method: str = "pdml", preset: str = "paper", task: Task | None = None) -> Settings:
    """Return the settings of a method on an environment.

    Args:
        task: What is known of the environment; may be left out for those that are listed.
    """
    for name, value, table in (("method", method, METHODS), ("preset", preset, PRESETS)):
        if not isinstance(value, str) or value not in table:
            raise UserError(f"{name} = '{value}': unknown{nearest(value, table)}; allowed: {', '.join(table)}")
    record, chosen, task = METHODS[method], PRESETS[preset], task or require_task(env)
    if not record.reads(chosen.features):
        raise UserError(f"preset = '{preset}': is for {', '.join(readers(chosen.features))}; method is '{method}'")
    settings = Settings(
        Config(
            env=env,
            method=method,
            preset=preset,
            warmup_steps=task.warmup_steps,
            updates_per_step=task.updates_per_step,
            termination=task.termination,
            max_episode_steps=task.max_episode_steps,
            agent=AgentConfig(target_entropy=task.target_entropy),
            ampo=AmpoConfig(**asdict(task.adaptation)),
            rollouts=RolloutConfig(batch=task.rollout_batch, **asdict(task.horizon)),
        ),
        RunConfig(steps=task.budget),
    )
    settings = change(settings, {**_on(record.changes, task), **record.fixes})
    of_preset = _on(chosen.changes, task)
    return change(settings, {name: value for name, value in of_preset.items() if name in read_by(method)})


def _on(changes: Changes, task: Task) -> Changes:
    """Settle the values that depend on the environment."""
    return {name: value.of(task) if isinstance(value, ByTask) else value for name, value in changes.items()}


def require_task(env: str) -> Task:
    """Return the task of a listed environment."""
    task = listed_task(env)
    if task is None:
        raise UserError(f"env = '{env}': is not listed, so its settings depend on its spaces; none are given")
    return task


def rebase(settings: Settings, method: str, task: Task) -> Settings:
    """Return the settings of another method with the same departures from its defaults."""
    config = settings.learning
    old = defaults(config.env, config.method, config.preset, task)
    departures = {name: get(settings, name) for name in different(settings, old)}
    return change(defaults(config.env, method, config.preset, task), departures)
