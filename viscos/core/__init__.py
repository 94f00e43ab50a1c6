"""What every other package stands on: batches of items with holes, verdicts, random numbers, errors, whole files."""
