"""What everything stands on: errors, addressed randomness, pytrees, networks, clocks and signals."""
