"""Runs as one page to look at: `write_report`."""

from .page import write_report as write_report
