"""What a node keeps: datasets, plans, jobs and decisions, in one SQLite file."""
