"""The conformance tests of stores, for users' own stores as well."""
