"""The researcher's side: who is there, what they offer, what they accept, what they measure."""
