"""A study of our own: table estimators against those that people would pick, on 30 real tables."""
