"""Fuzz: failures counted under attack; ``python -m tools.fuzz`` runs it.

Each family is one file with ``cases(folder, count)``: an iterator of names and functions, where a
function makes one try and returns what went wrong, or nothing.
"""
