"""Collectors of jobs: the tree of a job's processes, and the job's own cgroup."""
