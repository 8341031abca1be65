// A program's instructions as the broker's executor tells them: what
// `jgpu.broker.executor.programs.running.assembly` makes of a plan. `straight.h` carries them out.

#pragma once

#include "python.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

// Of pybind_utils.h and python_arg_parser.h, which would bring half of torch's bindings along.
namespace torch {
TORCH_PYTHON_API bool should_allow_numbers_as_tensors(const std::string& name);
namespace jit {
TORCH_PYTHON_API IValue
toIValue(py::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
class TORCH_PYTHON_API ToIValueAllowNumbersAsTensors {
  [[maybe_unused]] bool old_;

 public:
  explicit ToIValueAllowNumbersAsTensors(bool enable);
  ~ToIValueAllowNumbersAsTensors();
};
} // namespace jit
} // namespace torch

namespace jgpu {

inline std::string text_of(PyObject* object) {
  const char* text = PyUnicode_AsUTF8(object);
  if (text == nullptr) {
    raise();
  }
  return text;
}

// One argument of an op or of a call.
struct Operand {
  enum Kind { constant, reg, number, several, generator, notes };

  Kind kind = constant;
  size_t index = 0;
  c10::IValue value; // a constant of an op
  Owned object; // a constant of a call
  c10::TypePtr type; // what an op takes here
  std::vector<Operand> items;
};

// What a tensor has to be like after its op.
struct Claim {
  enum Layout { any, in_rows, strided };

  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype{};
  Layout layout = any;
  int64_t offset = 0;

  bool fits(const at::Tensor& made) const {
    if (!made.defined() || made.sizes() != sizes || made.scalar_type() != dtype) {
      return false;
    }
    if (layout == any) {
      return true;
    }
    const bool lies_so = layout == in_rows ? made.is_contiguous() : made.strides() == strides;
    return lies_so && made.storage_offset() == offset;
  }
};

struct Instruction {
  enum Kind { mark, op, call, view, check, zero, tell, drop, look, lay };

  Kind kind = mark;
  int64_t step = 0;
  std::optional<c10::OperatorHandle> handle;
  bool takes_numbers = false; // a number may stand for a tensor
  Owned callable, names;
  std::vector<Operand> operands;
  std::vector<int64_t> places; // registers that are filled, -1: what is left out; or that are let go of
  size_t reg = 0, base = 0;
  int64_t low = 0, high = 0; // what a look finds nothing wrong with: in [low, high)
  int64_t count = 0; // elements of the storage in which something is laid out
  Claim claim;
};

inline std::vector<int64_t> places_of(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(integer(PyTuple_GET_ITEM(tuple, i)));
  }
  return found;
}

// A program's instructions, and the names of its registers. Nothing in it changes once it is made,
// so that several threads may run it at a time.
class Straight {
 public:
  // (names, registers of the inputs, registers that are returned, instructions)
  explicit Straight(PyObject* told) {
    PyObject *all = nullptr, *inputs = nullptr, *kept = nullptr, *instructions = nullptr;
    if (PyArg_ParseTuple(
            told, "O!O!O!O!", &PyTuple_Type, &all, &PyTuple_Type, &inputs, &PyTuple_Type, &kept,
            &PyTuple_Type, &instructions) == 0) {
      raise();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); ++i) {
      registers.push_back(held(PyTuple_GET_ITEM(all, i)));
    }
    taken = places_of(inputs);
    returned = places_of(kept);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instructions); ++i) {
      add(PyTuple_GET_ITEM(instructions, i));
    }
  }

  std::deque<Instruction> instructions;
  std::vector<Owned> registers; // the name of each
  std::vector<int64_t> taken, returned;

 private:
  void add(PyObject* told) {
    Instruction& made = instructions.emplace_back();
    made.kind = static_cast<Instruction::Kind>(integer(PyTuple_GET_ITEM(told, 0)));
    made.step = integer(PyTuple_GET_ITEM(told, 1));
    PyObject* const* rest = &PyTuple_GET_ITEM(told, 2);
    switch (made.kind) {
      case Instruction::mark:
        break;
      case Instruction::op: // name, overload, arguments, places
        made.handle = c10::Dispatcher::singleton().findSchemaOrThrow(
            text_of(rest[0]).c_str(), text_of(rest[1]).c_str());
        made.takes_numbers =
            torch::should_allow_numbers_as_tensors(text_of(rest[0]).substr(strlen("aten::")));
        add_operands(made, rest[2]);
        made.places = places_of(rest[3]);
        break;
      case Instruction::call: // callable, arguments, names of the last of them, places
        made.callable = held(rest[0]);
        add_operands(made, rest[1]);
        made.names = held(rest[2]);
        made.places = places_of(rest[3]);
        break;
      case Instruction::look: // place, least, past the most; callable and arguments, if more is to say
        made.reg = static_cast<size_t>(integer(rest[0]));
        made.low = integer(rest[1]);
        made.high = integer(rest[2]);
        made.callable = held(rest[3]);
        add_operands(made, rest[4]);
        made.names = checked(PyTuple_New(0));
        break;
      case Instruction::view: // place, base, shape, stride, offset
        made.reg = static_cast<size_t>(integer(rest[0]));
        made.base = static_cast<size_t>(integer(rest[1]));
        made.claim.sizes = places_of(rest[2]);
        made.claim.strides = places_of(rest[3]);
        made.claim.offset = integer(rest[4]);
        break;
      case Instruction::check: // place, shape, dtype, layout, stride, offset
        made.reg = static_cast<size_t>(integer(rest[0]));
        made.claim.sizes = places_of(rest[1]);
        made.claim.dtype = reinterpret_cast<THPDtype*>(rest[2])->scalar_type;
        made.claim.layout = static_cast<Claim::Layout>(integer(rest[3]));
        made.claim.strides = places_of(rest[4]);
        made.claim.offset = integer(rest[5]);
        break;
      case Instruction::zero: // place
        made.reg = static_cast<size_t>(integer(rest[0]));
        break;
      case Instruction::tell: // slot, place
        made.base = static_cast<size_t>(integer(rest[0]));
        made.reg = static_cast<size_t>(integer(rest[1]));
        break;
      case Instruction::drop: // places
        made.places = places_of(rest[0]);
        break;
      case Instruction::lay: // place, elements, shape, stride, offset
        made.reg = static_cast<size_t>(integer(rest[0]));
        made.count = integer(rest[1]);
        made.claim.sizes = places_of(rest[2]);
        made.claim.strides = places_of(rest[3]);
        made.claim.offset = integer(rest[4]);
        break;
    }
  }

  static void add_operands(Instruction& made, PyObject* told) {
    const torch::jit::ToIValueAllowNumbersAsTensors allowed(made.takes_numbers);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(told); ++i) {
      PyObject* each = PyTuple_GET_ITEM(told, i);
      if (made.handle.has_value()) {
        const auto& argument = made.handle->schema().arguments().at(static_cast<size_t>(i));
        made.operands.push_back(operand(each, argument.real_type(), argument.N()));
      } else {
        made.operands.push_back(operand(each, nullptr, std::nullopt));
      }
    }
  }

  // (kind, what it is); `type` is none for a call's.
  static Operand operand(PyObject* told, const c10::TypePtr& type, std::optional<int32_t> count) {
    Operand made;
    made.kind = static_cast<Operand::Kind>(integer(PyTuple_GET_ITEM(told, 0)));
    PyObject* what = PyTuple_GET_ITEM(told, 1);
    made.type = type;
    if (auto optional = type ? type->cast<c10::OptionalType>() : nullptr) {
      made.type = what == Py_None ? type : optional->getElementType();
    }
    if (made.kind == Operand::constant) {
      if (type) {
        made.value = torch::jit::toIValue(what, type, count);
      } else {
        made.object = held(what);
      }
    } else if (made.kind == Operand::several) {
      c10::TypePtr element;
      if (type) {
        element = made.type->expectRef<c10::ListType>().getElementType();
      }
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(what); ++i) {
        made.items.push_back(operand(PyTuple_GET_ITEM(what, i), element, std::nullopt));
      }
    } else if (made.kind != Operand::notes) {
      made.index = static_cast<size_t>(integer(what));
    }
    return made;
  }
};

} // namespace jgpu
