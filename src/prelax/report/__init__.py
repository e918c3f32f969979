"""A page to look at, and the paper's figures: plots and one self-contained HTML file."""

from prelax.report.page import gather, report
from prelax.report.render import render

__all__ = ["gather", "render", "report"]
