"""Old framework, until the last study is ported to the new one; then this folder goes."""
