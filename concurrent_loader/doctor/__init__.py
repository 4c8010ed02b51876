"""Will training from this bucket on this machine work, and how fast: small checks, each with a typed result."""

from concurrent_loader.doctor.examining import Examination, Wishes, examine
from concurrent_loader.doctor.finding import Finding, Level, is_healthy
from concurrent_loader.doctor.forecast import Forecast, Limit
from concurrent_loader.doctor.terraform_outputs import Target, read_outputs

__all__ = [
    "Examination",
    "Finding",
    "Forecast",
    "Level",
    "Limit",
    "Target",
    "Wishes",
    "examine",
    "is_healthy",
    "read_outputs",
]
