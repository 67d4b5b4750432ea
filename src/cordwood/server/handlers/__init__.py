"""One module a theme: requests of the protocol in, words of the broker out, and back."""
