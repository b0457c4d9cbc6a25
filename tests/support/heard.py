"""Callbacks that are named on the command line; what they hear stays here."""

import pdml

HEARD: list[tuple] = []


class Listener(pdml.Callback):
    """Notes what it hears, and stops or fails at a step."""

    def __init__(self, name="", stop_at=None, fail_at=None):
        self.name, self.stop_at, self.fail_at = name, stop_at, fail_at

    def on_step(self, agent):
        HEARD.append((self.name, "step", agent.steps))
        if agent.steps == self.fail_at:
            raise ValueError("the listener\nis tired")
        return agent.steps != self.stop_at

    def on_block(self, agent, row):
        HEARD.append((self.name, "block", row["step"], dict(row)))

    def on_evaluation(self, agent, evaluation):
        HEARD.append((self.name, "evaluation", evaluation.step, evaluation.mean))
        assert agent.predict([0.0, 0.0]).shape == (1,)
        assert agent.policy([0.0, 0.0]).shape == (1,)
        assert len(agent.evaluate(1).returns) == 1
        assert (agent.path / "config.json").exists()
