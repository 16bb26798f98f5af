"""One batch job, measured from inside: `fedmon job`."""
