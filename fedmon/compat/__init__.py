"""Names, wires and files of earlier systems, over fedmon's own."""
