"""A web page that runs a biLM in the browser and shows its results."""
