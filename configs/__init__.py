"""The YAML files that the command line composes."""
