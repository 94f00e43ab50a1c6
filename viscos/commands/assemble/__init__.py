"""Objects from settings: the one place that reads them. What it makes is typed and frozen, and reads none."""
