"""From a request to ranked plans: the space, what is refused and why, the search, the order of plans."""
