"""The demo: six ensembles on digits, compared by collusion, detection and robustness.

Ensembles of five small networks learn the digits 0 to 7 of scikit-learn's set under different
objectives; 8 and 9 are held out as unknown inputs. Every number comes from this run.
"""

from dissensus.demo.pipeline import run

__all__ = ["run"]
