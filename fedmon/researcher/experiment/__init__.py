"""Experiments over the federation: resources with states, conditions between them, and a controller that explains.

The names are those of NEPI's ExperimentController, so that its scripts port.
"""
