"""What `compare.pytest_plugin` is made of. No file here imports anything heavy when it is loaded: pytest loads them."""
