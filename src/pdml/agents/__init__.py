"""Agents that learn from minibatches: SAC, REDQ, MaPER."""
