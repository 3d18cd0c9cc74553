"""Models behind HTTP: requests of many clients translated together, and a web page for translating."""
