// Exists so that the precompiled header belongs to a target that the others can reuse.
