"""Tools: what every room needs and no paper is about."""
