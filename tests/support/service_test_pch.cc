// A target needs a source: the header is what it is for.
