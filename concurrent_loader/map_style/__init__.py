"""Drop-in: torch's DataLoader over any torch dataset, with many items in flight."""
