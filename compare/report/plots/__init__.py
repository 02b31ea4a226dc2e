"""The pictures of a result, a file each: what is drawn of which figures, or why there is nothing to draw."""
