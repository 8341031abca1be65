// Tensors over storages, for the executor, whose ops then compute on them.
//
// As `jgpu.broker.executor.memory.hostbytes` and `jgpu.broker.executor.programs.geometry`, without
// torch's reading of arguments, which takes longer than the rest, most of all after a pause.

#pragma once

#include "python.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace jgpu {

inline at::Tensor bare_bytes(int64_t nbytes) {
  return at::detail::empty_cpu(
      {nbytes}, at::kByte, /*pin_memory=*/false, /*memory_format_opt=*/std::nullopt);
}

// A tensor on the host that holds these bytes, in a storage of its own.
inline PyObject* tensor_of(PyObject* bytes) {
  char* data = nullptr;
  Py_ssize_t nbytes = 0;
  check(PyBytes_AsStringAndSize(bytes, &data, &nbytes));
  at::Tensor made = bare_bytes(nbytes);
  std::memcpy(made.mutable_data_ptr(), data, static_cast<size_t>(nbytes));
  return THPVariable_Wrap(std::move(made));
}

using Extents = c10::SmallVector<int64_t, 6>;

inline Extents extents(PyObject* tuple) {
  if (!PyTuple_Check(tuple)) {
    throw torch::TypeError("a shape and its strides are tuples");
  }
  Extents found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(integer(PyTuple_GET_ITEM(tuple, i)));
  }
  return found;
}

// A tensor of this type and geometry over the storage of another.
inline at::Tensor laid_over(
    const at::Tensor& base, at::ScalarType type, const Extents& shape, const Extents& stride,
    int64_t offset) {
  if (base.scalar_type() == type && !base.is_conj() && !base.is_neg()) {
    return base.as_strided(shape, stride, offset);
  }
  // What torch makes of nothing and then sets, where it would ask nobody on the way.
  static const c10::DispatchKeySet plain = bare_bytes(0).key_set();
  bool may_be = base.key_set() == plain && !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
      offset >= 0 && shape.size() == stride.size();
  for (size_t i = 0; may_be && i < shape.size(); ++i) {
    may_be = shape[i] >= 0 && stride[i] >= 0;
  }
  if (may_be) {
    const auto itemsize = c10::elementSize(type);
    const auto needed =
        at::detail::computeStorageNbytes(shape, stride, itemsize, static_cast<size_t>(offset));
    if (needed <= base.storage().nbytes()) {
      at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(base.storage()), plain, c10::scalarTypeToTypeMeta(type));
      made.unsafeGetTensorImpl()->set_sizes_and_strides(shape, stride, offset);
      return made;
    }
  }
  at::Tensor made = at::empty({0}, at::TensorOptions().dtype(type).device(base.device()));
  return made.set_(base.storage(), offset, shape, stride);
}

// laid_over(base, dtype, shape, stride, offset)
inline PyObject* laid_over_by(PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5 || !THPVariable_Check(arguments[0]) || !THPDtype_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "laid_over(base, dtype, shape, stride, offset)");
    return nullptr;
  }
  return THPVariable_Wrap(laid_over(
      THPVariable_Unpack(arguments[0]),
      reinterpret_cast<THPDtype*>(arguments[1])->scalar_type,
      extents(arguments[2]), extents(arguments[3]), integer(arguments[4])));
}

} // namespace jgpu
