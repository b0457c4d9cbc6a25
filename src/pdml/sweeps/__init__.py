"""Many runs: studies, plans, workers on this machine or on a cluster, and how they stand."""
