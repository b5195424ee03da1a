"""Raw profile columns to one timeline, written as Perfetto."""
