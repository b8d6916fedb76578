"""A study of our own: members that disagree on strangers, against what else people would do."""
