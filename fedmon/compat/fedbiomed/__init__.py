"""The wire of Fed-BioMed 4.4, at the node and at the researcher."""
