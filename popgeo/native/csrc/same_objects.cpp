// Compares dictionaries of Python with their earlier content, in one call that holds Python's lock. Python passes its own
// stable functions by address. See popgeo/engine/same_objects.py.
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Python {
  int (*next)(const void* dictionary, int64_t* place, const void** key, const void** value);  // PyDict_Next
  const void* (*get)(const void* dictionary, const void* key);                                // PyDict_GetItemWithError
};

struct Table {
  const void* dictionary;
  int64_t count;  // of its entries, which follow those of the table before
};

struct Entry {
  const void *key, *value;
};

struct Place {
  const void *dictionary, *key, *value;  // value: null if the key is missing
};

struct Kind {
  const void *const *place, *kind;  // the place of an object's class, and the class
};

struct Objects {
  const Python* python;
  const Table* tables;
  const Entry* entries;
  const Place* places;
  const Kind* kinds;
  int64_t num_tables, num_places, num_kinds;
};

}  // namespace

// Returns whether all tables, places and classes hold the same objects as noted.
EXPORT int64_t popgeo_same_objects(const Objects* given) {
  const Python& python = *given->python;
  const Entry* noted = given->entries;
  for (int64_t i = 0; i < given->num_kinds; ++i)
    if (*given->kinds[i].place != given->kinds[i].kind) return 0;
  for (int64_t i = 0; i < given->num_places; ++i)
    if (python.get(given->places[i].dictionary, given->places[i].key) != given->places[i].value) return 0;
  for (int64_t i = 0; i < given->num_tables; ++i) {
    int64_t place = 0, count = given->tables[i].count;
    const void *key, *value;
    for (; python.next(given->tables[i].dictionary, &place, &key, &value); --count, ++noted)
      if (!count || key != noted->key || value != noted->value) return 0;
    if (count) return 0;
  }
  return 1;
}
