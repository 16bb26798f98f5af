"""Former path of `fedmon.report.views`."""

from __future__ import annotations

import warnings

from fedmon.report.views import VIEWS, nebula, perfmon

__all__ = ["VIEWS", "nebula", "perfmon"]

warnings.warn("fedmon.report.aliases is now fedmon.report.views", DeprecationWarning, stacklevel=2)
