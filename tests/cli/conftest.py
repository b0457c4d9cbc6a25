from quick_start import speed_measured_once  # noqa: F401
