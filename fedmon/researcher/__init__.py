"""The researcher's side: which nodes are there, what they offer, accept and measure."""
