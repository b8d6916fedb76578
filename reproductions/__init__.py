"""Reproductions of three papers, and studies of our own: experiments with claims as checks.

``registry.EXPERIMENTS`` names all experiments, ``experiment`` says what an experiment is, and
``python -m reproductions`` runs them.
"""
