"""Experiments of papers: their settings, their figures, and whether these hold here."""
