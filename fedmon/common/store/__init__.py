"""What is kept on disk and shared by both sides: queues and recordings."""
