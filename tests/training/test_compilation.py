"""Each function of a run is compiled once, whatever changes on the way."""

import jax
import numpy as np
import pytest
from tiny import blank_state, each_method, new_parts

from pdml.config.fields import change
from pdml.core.stopwatch import Stopwatch
from pdml.envs.evaluation import evaluate
from pdml.envs.gym import make_env
from pdml.training.loop import Training, train


def compilations(settings):
    """Run and count, evaluating twice with different numbers of episodes still running."""
    parts, lengths, capacities = new_parts(settings), set(), set()
    mode, last = jax.jit(parts.recipe.agent.mode), settings.run.steps
    env, *envs = (make_env(settings.learning.env) for _ in range(4))

    def after_step(state, step):
        lengths.add(state.log.metrics.get("imagined/horizon"))
        capacities.add(int(state.buffer.capacity))
        if state.step in (last - 30, last - 10):
            evaluate(envs, lambda obs, time: np.asarray(mode(state.agent.actor, obs)), 0, state.step, 3)

    state = blank_state(settings, parts, env)
    functions = {"act": parts.act, "improve": parts.improve, "rollouts": parts.rollouts, "resize": parts.resize}
    functions |= parts.model.dynamics.compiled | {"mode": mode}
    functions |= {"outputs": state.history._evaluate, "shift": state.history._shift}
    for function in functions.values():
        function.clear_cache()  # other runs in this process call some of them too
    train(state, env, Training(settings.learning, parts, Stopwatch()), last, after_step)
    return {name: function._cache_size() for name, function in functions.items()}, lengths, capacities


def test_every_function_compiles_once_per_run(tiny):
    """Over changes of branch length and of the buffer's capacity, a short last block and minibatch, two evaluations."""
    growing = {"model_every": 40, "rollouts.last_epoch": 2, "rollouts.longest": 3, "rollouts.max_rows": 80}
    counts, lengths, capacities = compilations(change(tiny, {"steps": 170, **growing}))
    assert {1.0, 2.0, 3.0} <= lengths
    assert capacities == {0, 40, 80}
    assert counts == dict.fromkeys(counts, 1)


@pytest.mark.parametrize("method", each_method())
def test_nothing_is_traced_or_compiled_after_the_first_blocks(method, tiny_run):
    compiled = tiny_run(method).compilations
    assert compiled[101] > 0
    assert compiled[160] == compiled[121]  # mixtures begin at step 100


@pytest.mark.slow
def test_the_fit_compiles_once_more_when_its_capacity_doubles(tiny):
    changes = {"warmup_steps": 4060, "steps": 4130}  # 4096 rows are exceeded at a fit
    counts, _, _ = compilations(change(tiny, changes))
    doubled = {"train_epoch", "holdout_error"}
    assert counts == {name: 2 if name in doubled else 1 for name in counts}
