"""The account of a step: figures, tables, what stands out, and the forms that it is shown in."""
