"""A package, so that it goes before one of this name among what is installed: verl brings one."""
