"""DHMBPO: double-horizon model-based policy optimisation [Kubo et al. 2025]."""
