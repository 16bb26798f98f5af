"""Settings: read once from a TOML file and the environment, checked, and passed on as frozen values."""
