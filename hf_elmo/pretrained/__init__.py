"""The small English model that ships with the package."""
