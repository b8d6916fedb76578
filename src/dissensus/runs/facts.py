from dissensus.runs.data_summary import DataSummary as Facts

__all__ = ["Facts"]
