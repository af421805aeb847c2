// Says from which sources the library was built, so that Python files of another version never call it.

extern "C" __attribute__((visibility("default"))) unsigned popgeo_sources() { return POPGEO_SOURCES; }
