"""One module per vendor, and what they share: captures, model table, fault catalogues, kernel lines.

What a vendor's tools and drivers print ends here; everything behind reads `shared.devices` and fault classes.
"""
