"""Pages: an archive or a benchmark as one HTML file that needs nothing else. Builds text, prints nothing."""
