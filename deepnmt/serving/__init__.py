"""Models behind HTTP: requests of many clients translated together, and a page to translate on."""
