// Returns the checksum of the library's sources, so that Python files of a different version never call it.

extern "C" __attribute__((visibility("default"))) unsigned popgeo_sources() { return POPGEO_SOURCES; }
