// Compares the forms of torch's tensors (memory, type, shape, strides) with their earlier forms, in one call.
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t MOST_DIMENSIONS = 8;  // the same number as in popgeo/native/tensor_forms.py

struct Form {
  int64_t kind, requires_grad, data, dimensions, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
  int32_t dtype, layout;
};

// Functions of torch's stable C interface, and one of its C++ class. A tensor is the address of its at::Tensor.
struct Torch {
  int32_t (*layout)(void* tensor, int32_t*);
  int32_t (*dtype)(void* tensor, int32_t*);
  int32_t (*dimensions)(void* tensor, int64_t*);
  int32_t (*sizes)(void* tensor, int64_t**);
  int32_t (*strides)(void* tensor, int64_t**);
  int32_t (*data)(void* tensor, int64_t*);
  bool (*requires_grad)(const void* implementation);
};

struct Tensors {
  const Torch* torch;
  int64_t count;
  const int64_t* const* kinds;  // the place of each object's class
  void** const* tensors;
  Form* forms;
  int64_t only_memory, notes;  // whether to compare addresses alone, and whether to write the forms
};

// Returns whether a tensor has its noted form; writes the present form if `notes` is set.
bool is_same(const Torch& torch, int64_t kind, void** tensor, Form& form, bool only_memory, bool notes) {
  Form now;
  int64_t *sizes, *strides, different = 0;
  if (only_memory && !notes) return !torch.data(tensor, &now.data) && now.data == form.data;
  const auto compare = [&](auto value, auto& noted) {
    different |= value ^ noted;
    if (notes) noted = value;
  };
  if (torch.layout(tensor, &now.layout) | torch.dtype(tensor, &now.dtype) | torch.dimensions(tensor, &now.dimensions))
    return false;
  compare(kind, form.kind);
  compare(int64_t(torch.requires_grad(*tensor)), form.requires_grad);
  compare(now.layout, form.layout);
  compare(now.dtype, form.dtype);
  compare(now.dimensions, form.dimensions);
  if (different && !notes) return false;
  if (torch.sizes(tensor, &sizes) | torch.strides(tensor, &strides) | torch.data(tensor, &now.data)) return false;
  compare(now.data, form.data);
  for (int64_t d = 0; d < form.dimensions; ++d) {
    compare(sizes[d], form.sizes[d]);
    compare(strides[d], form.strides[d]);
  }
  return different == 0;
}

}  // namespace

// Returns whether all tensors have the forms that an earlier call wrote.
EXPORT int64_t popgeo_same_forms(const char* packed) {
  Tensors given;
  std::memcpy(&given, packed, sizeof(given));
  int64_t same = 1;
  for (int64_t i = 0; i < given.count && (same || given.notes); ++i)
    same &= is_same(*given.torch, *given.kinds[i], given.tensors[i], given.forms[i], given.only_memory, given.notes);
  return same;
}
