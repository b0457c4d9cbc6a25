"""Agents that learn from minibatches of transitions: SAC, REDQ and MaPER."""
