"""An HTML page about runs: `write_report`."""

from .page import write_report as write_report
