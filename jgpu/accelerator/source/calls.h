// A call's arguments, as the interpreter of torch's dispatcher has them on its stack.
//
// Invariant: what is said here of a call (its key, buffers, offsets, numbers) is what
// `jgpu.device.recording.entry` says of it. Where that is not plain, nothing is said.

#pragma once

#include "wrappers.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <optional>
#include <string>

namespace jgpu {

using Given = at::ArrayRef<c10::IValue>;

enum class Kind {
  tensor,
  tensors,
  some_tensors, // and none in the place of others
  number,
  numbers,
  integer,
  integers,
  truth,
  truths,
  dtype,
  layout,
  memory_format,
  text,
  device,
  other
};

// One argument of an op's schema.
struct Argument {
  Kind kind = Kind::other;
  // 1 where a number becomes a run's parameter (`OpInfo.lift`)
  int lift = 0;
  std::optional<c10::IValue> unsaid; // its default
  PyObject* name = nullptr;

  bool is_default(const c10::IValue& value) const {
    if (!unsaid.has_value()) {
      return false;
    }
    if (unsaid->isNone() || value.isNone()) {
      return unsaid->isNone() && value.isNone();
    }
    if (unsaid->isInt() && value.isInt()) {
      return unsaid->toInt() == value.toInt();
    }
    if (unsaid->isBool() && value.isBool()) {
      return unsaid->toBool() == value.toBool();
    }
    return *unsaid == value;
  }
};

inline bool is_some_tensors(const c10::Type& list) {
  const auto optional =
      list.castRaw<c10::ListType>()->getElementType()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

inline Kind kind_of(const c10::TypePtr& type) {
  c10::TypePtr inner = type;
  if (auto optional = inner->cast<c10::OptionalType>()) {
    inner = optional->getElementType();
  }
  switch (inner->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return Kind::number;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Kind::integer;
    case c10::TypeKind::BoolType:
      return Kind::truth;
    case c10::TypeKind::ScalarTypeType:
      return Kind::dtype;
    case c10::TypeKind::LayoutType:
      return Kind::layout;
    case c10::TypeKind::MemoryFormatType:
      return Kind::memory_format;
    case c10::TypeKind::StringType:
      return Kind::text;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::ListType:
      switch (inner->castRaw<c10::ListType>()->getElementType()->kind()) {
        case c10::TypeKind::TensorType:
          return Kind::tensors;
        case c10::TypeKind::OptionalType:
          return is_some_tensors(*inner) ? Kind::some_tensors : Kind::other;
        case c10::TypeKind::NumberType:
          return Kind::numbers;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
          return Kind::integers;
        case c10::TypeKind::BoolType:
          return Kind::truths;
        default:
          return Kind::other;
      }
    default:
      return Kind::other;
  }
}

// What there is to know of an op before it is called. It lives as long as the dispatcher, which
// outlives Python: what is Python's in it is never let go of.
struct Schema {
  PyObject* info = nullptr;
  std::vector<Argument> arguments;
  size_t positional = 0;
  size_t returns = 0;
  bool returns_list = false;
  bool in_place = false;
  // it writes no argument
  bool writes_nothing = true;
  // it is given the default dtype where none is said, which only this process knows
  bool of_default_dtype = false;

  // How many positional arguments are said: Python is not given those at the end that are as by
  // default.
  size_t said(Given given) const {
    size_t count = positional;
    while (count > 0 && arguments[count - 1].is_default(given[count - 1])) {
      --count;
    }
    return count;
  }
};

inline Schema schema_of(
    const c10::OperatorHandle& op, PyObject* info, PyObject* lift, bool in_place) {
  Schema made;
  made.info = held(info).release();
  made.in_place = in_place;
  const auto& schema = op.schema();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& each = schema.arguments()[i];
    Argument argument;
    argument.kind = kind_of(each.real_type());
    argument.unsaid = each.default_value();
    made.writes_nothing =
        made.writes_nothing && (each.alias_info() == nullptr || !each.alias_info()->isWrite());
    argument.name = checked(PyUnicode_InternFromString(each.name().c_str())).release();
    if (static_cast<Py_ssize_t>(i) < PyTuple_GET_SIZE(lift)) {
      argument.lift = static_cast<int>(integer(PyTuple_GET_ITEM(lift, static_cast<Py_ssize_t>(i))));
    }
    if (!each.kwarg_only()) {
      made.positional = i + 1;
    }
    made.arguments.push_back(std::move(argument));
  }
  made.returns = schema.returns().size();
  made.returns_list =
      made.returns == 1 && schema.returns()[0].real_type()->kind() == c10::TypeKind::ListType;
  return made;
}

// What a call's arguments hold; the lists own what is in them.
class Call {
 public:
  using List = c10::SmallVector<PyObject*, 12>;

  // `graveyard` is that of the session's buffers; nullptr where none are looked at.
  explicit Call(PyObject* info, PyObject* graveyard = nullptr) : graveyard_(graveyard) {
    say(info);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (auto* list : {&key, &buffers, &offsets, &params}) {
      for (PyObject* each : *list) {
        Py_DECREF(each);
      }
    }
  }

  List key, buffers, offsets, params;
  // something was said that `entry` leaves to `dispatch`, which looks at what is written, too
  bool is_wordy = false;

  void say(PyObject* borrowed) {
    Py_INCREF(borrowed);
    key.push_back(borrowed);
  }
  void say(Owned made) {
    key.push_back(made.release());
  }
  void say_type(PyTypeObject& type) {
    say(reinterpret_cast<PyObject*>(&type));
  }

  // Each returns whether the argument is plain. What was said before stays said.

  bool add(const Argument& argument, const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) {
        say(Py_None);
        return true;
      }
      return is_ours(tensor) ? add_tensor(tensor)
                             : argument.lift == 1 && add_wrapped_number(tensor);
    }
    if (value.isNone()) {
      say(Py_None);
      return true;
    }
    switch (argument.kind) {
      case Kind::number:
        return argument.lift == 1 && add_number(value);
      case Kind::integer:
        return argument.lift == 0 && add_integer(value);
      case Kind::truth:
        return add_truth(value);
      case Kind::integers:
        return argument.lift == 0 && add_integers(value);
      case Kind::tensors:
        return argument.lift != 1 && add_tensors(value);
      case Kind::some_tensors:
        return argument.lift != 1 && add_some_tensors(value);
      case Kind::numbers:
        return argument.lift == 2 && add_numbers(value);
      case Kind::truths:
        is_wordy = true;
        return add_truths(value);
      default:
        return add_word(argument.kind, value);
    }
  }

  // The default dtype, as if it had been given by its name.
  void add_default_dtype() {
    static PyObject* const name = checked(PyUnicode_InternFromString("dtype")).release();
    say(name);
    say(reinterpret_cast<PyObject*>(
        torch::getTHPDtype(c10::typeMetaToScalarType(c10::get_default_dtype()))));
  }

  // Of an argument that is given by its name, where tensors are not.
  bool add_named(const Argument& argument, const c10::IValue& value) {
    say(argument.name);
    switch (argument.kind) {
      case Kind::number:
        return argument.lift != 0 && add_number(value);
      case Kind::truth:
        is_wordy = true;
        return add_truth(value);
      default:
        return add_word(argument.kind, value);
    }
  }

 private:
  bool add_tensor(const at::Tensor& tensor) {
    const Owned object = device_tensor(tensor);
    if (!object) {
      return false;
    }
    Place of = place_of(tensor, object.get());
    if (slots.graveyard.of(of.buffer.get()).get() != graveyard_) {
      return false; // of a device that is gone
    }
    say(std::move(of.geometry));
    buffers.push_back(of.buffer.release());
    offsets.push_back(integer_of(of.offset).release());
    return true;
  }

  bool add_tensors(const c10::IValue& value) {
    if (!value.isTensorList()) {
      return false;
    }
    const auto list = value.toListRef();
    say(integer_of(static_cast<int64_t>(list.size())));
    for (const auto& each : list) {
      if (!each.isTensor() || !add_tensor(each.toTensor())) {
        return false;
      }
    }
    return true;
  }

  // An index on the host is looked at in Python.
  bool add_some_tensors(const c10::IValue& value) {
    if (!value.isList()) {
      return false;
    }
    const auto list = value.toListRef();
    say(integer_of(static_cast<int64_t>(list.size())));
    for (const auto& each : list) {
      if (each.isNone() || (each.isTensor() && !each.toTensor().defined())) {
        say(Py_None);
      } else if (!each.isTensor() || !add_tensor(each.toTensor())) {
        return false;
      }
    }
    return true;
  }

  bool add_number(const c10::IValue& value) {
    if (value.isDouble()) {
      say_type(PyFloat_Type);
      params.push_back(checked(PyFloat_FromDouble(value.toDouble())).release());
    } else if (value.isInt()) {
      say_type(PyLong_Type);
      params.push_back(integer_of(value.toInt()).release());
    } else {
      return false;
    }
    return true;
  }

  bool add_numbers(const c10::IValue& value) {
    if (!value.isList()) {
      return false;
    }
    const auto list = value.toListRef();
    say(integer_of(static_cast<int64_t>(list.size())));
    for (const auto& each : list) {
      if (!add_number(each)) {
        return false;
      }
    }
    return true;
  }

  bool add_truths(const c10::IValue& value) {
    if (!value.isBoolList()) {
      return false;
    }
    const auto list = value.toBoolList();
    say(integer_of(static_cast<int64_t>(list.size())));
    for (const bool each : list) {
      add_truth(each);
    }
    return true;
  }

  // What Python has an object for, which is what it says.
  bool add_word(Kind kind, const c10::IValue& value) {
    if (kind == Kind::text && value.isString()) {
      const std::string& text = value.toStringRef();
      is_wordy = true;
      say(checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()))));
      return true;
    }
    if (kind == Kind::device && value.isDevice()) {
      is_wordy = true;
      say(checked(THPDevice_New(value.toDevice())));
      return value.toDevice() == c10::Device(device_type, 0);
    }
    if (!value.isInt()) {
      return false;
    }
    const int64_t word = value.toInt();
    is_wordy = true;
    switch (kind) {
      case Kind::dtype:
        say(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(word))));
        return true;
      case Kind::layout:
        say(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(word))));
        return true;
      case Kind::memory_format:
        say(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(word)));
        return true;
      default:
        return false;
    }
  }

  // A number that torch made a tensor of, to give it to an op between tensors.
  bool add_wrapped_number(const at::Tensor& tensor) {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (!impl->is_wrapped_number() || impl->dim() != 0 || !tensor.device().is_cpu()) {
      return false;
    }
    switch (tensor.scalar_type()) {
      case at::kDouble:
        return add_number(*tensor.const_data_ptr<double>());
      case at::kLong:
        return add_number(*tensor.const_data_ptr<int64_t>());
      default:
        return false;
    }
  }

  bool add_integer(const c10::IValue& value) {
    if (!value.isInt()) {
      return false;
    }
    say(integer_of(value.toInt()));
    return true;
  }

  bool add_integers(const c10::IValue& value) {
    if (!value.isIntList()) {
      return false;
    }
    const auto list = value.toIntList();
    say(integer_of(static_cast<int64_t>(list.size())));
    for (const int64_t each : list) {
      say(integer_of(each));
    }
    return true;
  }

  bool add_truth(const c10::IValue& value) {
    if (!value.isBool()) {
      return false;
    }
    say_type(PyBool_Type);
    say(value.toBool() ? names.true_text : names.false_text);
    return true;
  }

  PyObject* graveyard_;
};

// How an op is carried out here.
class Way {
 public:
  virtual ~Way() = default;
  // Whether it was: then what it returns has taken the arguments' place on the stack.
  virtual bool carry_out(torch::jit::Stack* stack) = 0;
};

} // namespace jgpu
