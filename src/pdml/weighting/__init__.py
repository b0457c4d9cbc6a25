"""The paper's contribution: how much each real transition counts."""
