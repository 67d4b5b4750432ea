"""Data directories that earlier versions wrote, kept as archives: every later version must open them."""
