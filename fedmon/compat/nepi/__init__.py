"""NEPI's parts that experiments over a federation do not need; `fedmon.experiment` exports their names."""
