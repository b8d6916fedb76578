"""Reproductions of three papers: their tables and figures as experiments, with claims as checks.

``registry.EXPERIMENTS`` names all experiments, ``reproduce.reproduce`` runs them, and
``base`` says what an experiment is.
"""
