"""The verbs that read recordings: export, plot, report."""
