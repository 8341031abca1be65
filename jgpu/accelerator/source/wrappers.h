// Wrappers over the broker's buffers: what `jgpu.device.tensor.wrap` makes, made in C++.

#pragma once

#include "python.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <vector>

namespace jgpu {

constexpr auto device_type = c10::DeviceType::PrivateUse1;

// What of an `InternedGeometry` wrappers are made with; the geometry keeps it, as `native`.
struct Layout {
  std::vector<int64_t> sizes, strides;
  caffe2::TypeMeta dtype;
  int64_t itemsize = 0;
  int64_t nbytes = 0;
  Owned said_nbytes; // the same as Python has it
  // strides are those that torch gives to these sizes
  bool follows = true;
  // conjugated, or negated, by a bit (`wire.program`)
  int64_t bits = 0;

  bool is_lazy() const {
    return bits != 0;
  }
};

constexpr int64_t conjugated = 1;
constexpr int64_t negated = 2;

inline std::vector<int64_t> integers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(integer(PyTuple_GET_ITEM(tuple, i)));
  }
  return found;
}

inline Owned layout_made(PyObject* geometry) {
  auto made = std::make_unique<Layout>();
  made->sizes = integers(attribute(geometry, names.shape).get());
  made->strides = integers(attribute(geometry, names.stride).get());
  int64_t step = 1;
  for (size_t i = made->sizes.size(); i-- > 0;) {
    made->follows = made->follows && made->strides[i] == step;
    step *= std::max<int64_t>(made->sizes[i], 1);
  }
  const Owned dtype = attribute(geometry, names.dtype);
  made->dtype = c10::scalarTypeToTypeMeta(reinterpret_cast<THPDtype*>(dtype.get())->scalar_type);
  made->itemsize = integer(attribute(geometry, names.itemsize).get());
  made->said_nbytes = attribute(geometry, names.nbytes);
  made->nbytes = integer(made->said_nbytes.get());
  made->bits = integer(attribute(geometry, names.bits).get());
  Owned kept = checked(PyCapsule_New(made.get(), nullptr, [](PyObject* capsule) {
    delete static_cast<Layout*>(PyCapsule_GetPointer(capsule, nullptr));
  }));
  made.release();
  check(PyObject_SetAttr(geometry, names.native, kept.get()));
  return kept;
}

// Lives as long as the geometry, which the caller holds.
inline const Layout& layout_of(PyObject* geometry) {
  Owned kept = slots.geometry.of(geometry);
  if (kept.get() == Py_None) {
    kept = layout_made(geometry);
  }
  return *static_cast<Layout*>(PyCapsule_GetPointer(kept.get(), nullptr));
}

// What a device tensor shows: a buffer, by a geometry, from an offset on.
struct Place {
  Owned buffer, geometry;
  int64_t offset = 0;
};

// A wrapper that has its place itself, and not in its object's dictionary (`place_of`). It is
// detached without Python, as backward does with each tensor that it has saved.
class Wrapper final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  ~Wrapper() override {
    if (place.buffer || place.geometry) {
      if (is_ending()) { // nobody lets go of anything of Python's any more
        place.buffer.release();
        place.geometry.release();
        return;
      }
      const Interpreter held;
      place = Place();
    }
  }
  Wrapper(const Wrapper&) = delete;
  Wrapper& operator=(const Wrapper&) = delete;

  // none of its own if the tensor is of another kind
  static Wrapper* of(const at::Tensor& tensor) {
    auto* impl = tensor.unsafeGetTensorImpl();
    return typeid(*impl) == typeid(Wrapper) ? static_cast<Wrapper*>(impl) : nullptr;
  }

  // whoever changes it holds the interpreter's lock
  Place place;

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool may_change) const override {
    auto made = detached();
    return made ? settled(std::move(made), version, may_change)
                : c10::TensorImpl::shallow_copy_and_detach(version, may_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool may_change) const override {
    auto made = detached();
    return made ? settled(std::move(made), version, may_change)
                : c10::TensorImpl::shallow_copy_and_detach(std::move(version), may_change);
  }

 private:
  // None where Python is to do it.
  c10::intrusive_ptr<c10::TensorImpl> detached() const;

  static c10::intrusive_ptr<c10::TensorImpl> settled(
      c10::intrusive_ptr<c10::TensorImpl> made,
      const c10::VariableVersion& version,
      bool may_change) {
    if (!made->is_inference()) {
      made->set_version_counter(version);
      made->set_allow_tensor_metadata_change(may_change);
    }
    return made;
  }
};

// A new tensor over `buffer`; `offset` in elements of its type.
inline at::Tensor wrap(
    PyObject* buffer, PyObject* geometry, const Layout& layout, int64_t offset) {
  const size_t nbytes = at::detail::computeStorageNbytes(
      layout.sizes, layout.strides, layout.dtype.itemsize(), static_cast<size_t>(offset));
  c10::Storage storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      at::DataPtr{nullptr, c10::Device(device_type, 0)},
      c10::GetAllocator(c10::kMeta),
      /*resizable=*/true);
  at::Tensor made = at::detail::make_tensor<Wrapper>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), layout.dtype);
  auto* impl = made.unsafeGetTensorImpl();
  if (layout.follows && offset == 0) {
    impl->set_sizes_contiguous(layout.sizes);
  } else {
    impl->set_sizes_and_strides(layout.sizes, layout.strides, offset);
  }
  impl->set_python_dispatch(true);
  static_cast<Wrapper*>(impl)->place = Place{held(buffer), held(geometry), offset};
  checked(THPVariable_Wrap(made, connected.tensor));
  if (layout.is_lazy()) {
    made._set_conj((layout.bits & conjugated) != 0);
    made._set_neg((layout.bits & negated) != 0);
  }
  return made;
}

inline bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() &&
      tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

// The device tensor's own object; none where it is anything else.
inline Owned device_tensor(const at::Tensor& tensor) {
  if (!is_ours(tensor)) {
    return Owned();
  }
  Owned object = checked(THPVariable_Wrap(tensor));
  return Py_TYPE(object.get()) == connected.tensor ? std::move(object) : Owned();
}

// Of a device tensor, whose own object is given as well.
inline Place place_of(const at::Tensor& tensor, PyObject* object) {
  const Wrapper* wrapper = Wrapper::of(tensor);
  if (wrapper != nullptr && wrapper->place.buffer && wrapper->place.geometry) {
    const Place& found = wrapper->place;
    return {held(found.buffer.get()), held(found.geometry.get()), found.offset};
  }
  return {
      attribute(object, names.b), attribute(object, names.g),
      integer(attribute(object, names.o).get())};
}

inline c10::intrusive_ptr<c10::TensorImpl> Wrapper::detached() const {
  using c10::impl::TorchDispatchModeTLS;
  if (TorchDispatchModeTLS::any_modes_set() || !key_set().has(c10::DispatchKey::Python) ||
      c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) ||
      (c10::InferenceMode::is_enabled() && key_set().has_any(c10::autograd_dispatch_keyset))) {
    return {};
  }
  const Interpreter held;
  const at::Tensor self(
      c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<Wrapper*>(this)));
  const Owned object = device_tensor(self);
  if (!object) {
    return {};
  }
  const Place of = place_of(self, object.get());
  const Layout& layout = layout_of(of.geometry.get());
  return wrap(of.buffer.get(), of.geometry.get(), layout, of.offset).getIntrusivePtr();
}

inline c10::IValue list_of(c10::SmallVectorImpl<at::Tensor>& tensors) {
  c10::List<at::Tensor> all;
  all.reserve(tensors.size());
  for (auto& each : tensors) {
    all.push_back(std::move(each));
  }
  return c10::IValue(std::move(all));
}

} // namespace jgpu
