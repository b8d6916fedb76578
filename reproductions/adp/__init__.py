"""The tables and figures of the adp paper, and what is left of them under stronger attacks."""
