"""Topics from and to the directories of other systems."""
