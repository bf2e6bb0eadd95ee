"""The former place of these names, until their importers have moved."""

from undrift.reporting.figures import summarise
from undrift.reporting.headline import headline
from undrift.reporting.record import Record
from undrift.reporting.table import Column, columns
from undrift.reporting.wording import unit_of_traffic

__all__ = ["Column", "Record", "columns", "headline", "summarise", "unit_of_traffic"]
