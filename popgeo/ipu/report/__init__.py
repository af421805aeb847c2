"""The report about a step: figures, tables, insights, and their forms."""
