"""Tiny runs in the environment of `faulty`."""

from tiny import TINY

from pdml.config.defaults import defaults
from pdml.config.fields import change, leaves
from pdml.envs.env_spec import task_for

FAULTY = "faulty:Faulty-v0"


def faulty_run(method="sac"):
    """Return the settings of a tiny run without evaluations and with many checkpoints."""
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    changes = {name: value for name, value in TINY.items() if name in read}
    changes |= {"steps": 160, "checkpoint_every": 25, "eval_episodes": 0}
    return change(defaults(FAULTY, method, task=task_for(FAULTY)), changes)
