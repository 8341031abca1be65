// A number that Python reads (`item()`, `float(x)`, `if x:`): straight to what reads one.
//
// Covers the types whose numbers `jgpu.device.recording.copies` takes from their bytes; all others
// go the way of other ops.

#pragma once

#include "calls.h"

namespace jgpu {

class Number final : public Way {
 public:
  static constexpr auto name = "aten::_local_scalar_dense";

  bool carry_out(torch::jit::Stack* stack) override {
    const at::Tensor& tensor = torch::jit::last(*stack, 1)[0].toTensor();
    if (!is_common(tensor)) {
      return false;
    }
    const Owned source = device_tensor(tensor);
    if (!source) {
      return false;
    }
    const Owned read = checked(PyObject_CallOneArg(connected.number, source.get()));
    torch::jit::drop(*stack, 1);
    stack->push_back(value_of(read.get()));
    return true;
  }

 private:
  static bool is_common(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case at::kFloat:
      case at::kDouble:
      case at::kLong:
      case at::kInt:
      case at::kBool:
        return true;
      default:
        return false;
    }
  }

  static c10::IValue value_of(PyObject* number) {
    if (PyBool_Check(number)) {
      return number == Py_True;
    }
    if (PyFloat_CheckExact(number)) {
      return PyFloat_AS_DOUBLE(number);
    }
    return integer(number);
  }
};

} // namespace jgpu
