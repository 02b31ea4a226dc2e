"""Draw the pictures of a result, a file each, or say why there is nothing to draw."""
