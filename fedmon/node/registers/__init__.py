"""The registers of a node: datasets, plans, jobs and decisions, in one SQLite file."""
