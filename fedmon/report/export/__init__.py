"""Tables into files of many formats."""
