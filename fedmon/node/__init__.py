"""What runs beside the data: the node, its registers, its policy and its audit."""
