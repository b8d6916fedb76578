from dissensus.runs.load import put_weights

__all__ = ["put_weights"]
