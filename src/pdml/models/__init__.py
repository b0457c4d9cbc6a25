"""The dynamics model of MBPO and its relatives: ensemble, fit, losses, rollouts, termination."""
