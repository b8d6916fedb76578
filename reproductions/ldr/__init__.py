"""The ldr paper: disagreement on hard training samples, and detection by it."""
