"""The collusion paper: its tables and figures, and the claims they carry."""
