"""Storage shared by both sides: queues and recordings."""
