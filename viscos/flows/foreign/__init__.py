"""Flows that were trained with another library, as flows of viscos."""
