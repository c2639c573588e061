"""What `kvz bench` measured, as tables, pictures and one page. Plain data in, text out; see cell.py for the data."""
