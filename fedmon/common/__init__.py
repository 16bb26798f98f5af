"""What every side agrees on; imports nothing else of ours."""

__version__ = "0.2.0"
