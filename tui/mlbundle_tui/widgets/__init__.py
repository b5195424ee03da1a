"""Widgets of our own: charts, bars, and what shows a run that goes on."""
