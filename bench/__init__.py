"""Side-by-side measurements: each module is one command and prints one JSON object a line."""
