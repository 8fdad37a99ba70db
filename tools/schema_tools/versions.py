"""The versions that are tried; the manual names them."""

# Debian 12 has the first, Debian 13 the second.
RAILS = ("6.1.7", "7.2.2")
DRIZZLE_KIT = "0.31.11"
