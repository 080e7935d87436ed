"""One module for each library, run in that library's environment; none imports another, nor weft."""
