"""Collectors of jobs: the tree of a job's processes, and its cgroup where it has one of its own."""
