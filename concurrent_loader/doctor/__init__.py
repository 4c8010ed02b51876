"""Checks whether training from a bucket works on this machine, and how fast: small checks, each with a typed result."""

from concurrent_loader.doctor.checks import CheckOptions, Report, run_checks
from concurrent_loader.doctor.finding import Finding, Level, is_healthy
from concurrent_loader.doctor.forecast import Forecast, Limit
from concurrent_loader.doctor.terraform_outputs import Target, read_outputs

__all__ = [
    "CheckOptions",
    "Finding",
    "Forecast",
    "Level",
    "Limit",
    "Report",
    "Target",
    "is_healthy",
    "read_outputs",
    "run_checks",
]
