"""The paper's contribution: how much weight each real transition has."""
