"""The report: one model of it, written as a page of HTML and as a PDF."""
