"""Programs for those who work on Dissensus; not part of the package."""
