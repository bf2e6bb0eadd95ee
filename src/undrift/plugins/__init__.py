"""Corrections that can be combined with every algorithm."""
