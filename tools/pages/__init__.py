"""`python -m pages FOLDER` makes a static site of the project's pages; run by `make docs`."""
