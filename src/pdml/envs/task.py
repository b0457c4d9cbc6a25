"""The task of any environment. Gymnasium is imported only for one that is not listed, so that commands answer fast."""

from pdml.config.tasks import Task, listed_task


def env_task(env: str) -> Task:
    """Return the task of an environment; one that is not listed is made, which imports it."""
    task = listed_task(env)
    if task is not None:
        return task

    from pdml.envs.env_spec import task_for

    return task_for(env)
