"""Where untrusted code runs: the seam, the back ends behind it, and the proof that they hold."""
