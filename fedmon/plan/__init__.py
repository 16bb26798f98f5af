"""What a training plan works with while it runs: its context, its dataset, and the values that come and go."""
