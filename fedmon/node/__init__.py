"""The node, which runs beside the data: its daemon, requests, registers, measuring, jobs and owner."""
