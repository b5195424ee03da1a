"""The five sections, and the pages that open on top of them."""
