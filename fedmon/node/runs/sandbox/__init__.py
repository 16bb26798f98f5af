"""The confinement of plans to their files, their limits and no network."""
