"""The forms of Fed-BioMed's Requests."""
