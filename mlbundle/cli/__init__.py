"""The command line: parsing and printing, no logic."""

import gc

# Before anything else is imported: short commands make no cycles worth looking for, and looking takes a tenth of
# their time. A long one has its garbage collected all the same, in larger steps.
gc.set_threshold(50_000)
