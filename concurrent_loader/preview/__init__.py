"""Shows the contents of a dataset to people: values as text, counts per class, and one page of thumbnails."""
