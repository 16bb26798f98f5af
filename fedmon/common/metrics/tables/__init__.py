"""The rows of the table of metrics, one file for each part of a machine."""
