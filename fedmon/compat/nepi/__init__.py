"""NEPI's parts that experiments over a federation do not need; `fedmon.experiment` offers their names."""
