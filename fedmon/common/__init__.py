"""What every side agrees on; imports nothing else of ours."""
