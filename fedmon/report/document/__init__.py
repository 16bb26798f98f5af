"""The report: one model of it, written as a page of HTML and as a PDF."""

from __future__ import annotations

from fedmon.report.document.report import write

__all__ = ["write"]
