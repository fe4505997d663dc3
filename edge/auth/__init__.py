"""Who may do what, and how much of it: API tokens, tenants, rates, and which web pages may ask."""
