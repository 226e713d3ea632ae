"""The log: envelope, values, stores, leases, inbox. It knows no agent, no model and no event body."""
