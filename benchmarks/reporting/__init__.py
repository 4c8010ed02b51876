"""What the committed JSON files become: sections, plots, targets met and missed. Nothing is measured here."""
