"""The demo: what collusion looks like, which ensemble notices strange inputs, which one resists.

Ensembles of five small networks learn the digits 0 to 7 of scikit-learn's set under different
objectives; the digits 8 and 9 are kept from all of them. Every number comes from this run.
"""

from dissensus.demo.pipeline import run

__all__ = ["run"]
