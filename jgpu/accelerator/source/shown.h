// A view that was seen before: `jgpu.device.recording.viewing`, written out in C++.

#pragma once

#include "calls.h"

#include <string>

namespace jgpu {

class Shown final : public Way {
 public:
  Shown(Schema schema, const std::string& name)
      : schema_(std::move(schema)),
        is_row_(name == "aten::select.int"),
        is_slice_(name == "aten::slice.Tensor") {}

  bool carry_out(torch::jit::Stack* stack) override {
    const Given given = torch::jit::last(*stack, schema_.arguments.size());
    const size_t count = schema_.said(given);
    if (count == 0 || !given[0].isTensor() || !names_nothing(given)) {
      return false;
    }
    const at::Tensor& tensor = given[0].toTensor();
    const Owned source = device_tensor(tensor);
    if (!source || (c10::InferenceMode::is_enabled() && !tensor.is_inference())) {
      return false; // a view of a normal tensor is a normal tensor there
    }
    const Place of = place_of(tensor, source.get());
    Tensors made;
    const bool stretches = count >= 3 && (is_row_ || is_slice_);
    const bool is_seen = stretches ? stretch(of, given.slice(0, count), made)
                                   : look_up(of, given.slice(0, count), made);
    if (!is_seen) {
      return false;
    }
    torch::jit::drop(*stack, schema_.arguments.size());
    if (schema_.returns_list) {
      stack->push_back(list_of(made));
    } else {
      stack->emplace_back(std::move(made[0]));
    }
    return true;
  }

 private:
  using Tensors = c10::SmallVector<at::Tensor, 4>;

  bool names_nothing(Given given) const {
    for (size_t i = schema_.positional; i < given.size(); ++i) {
      if (!schema_.arguments[i].is_default(given[i])) {
        return false;
      }
    }
    return true;
  }

  bool look_up(const Place& of, Given given, Tensors& made) const {
    Call call(schema_.info);
    call.say(held(of.geometry.get()));
    for (size_t i = 1; i < given.size(); ++i) {
      if (!say(call, given[i])) {
        return false;
      }
    }
    const Owned key = tuple_of(call.key);
    const Owned seen = found(connected.views, key.get());
    if (!seen || PyList_CheckExact(seen.get()) != schema_.returns_list) {
      return false;
    }
    if (!schema_.returns_list) {
      return show(of, seen.get(), made);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(seen.get()); ++i) {
      if (!show(of, PyList_GET_ITEM(seen.get(), i), made)) {
        return false;
      }
    }
    return true;
  }

  // An argument as Python has it in a view's key.
  static bool say(Call& call, const c10::IValue& value) {
    if (value.isInt()) {
      call.say(integer_of(value.toInt()));
    } else if (value.isNone()) {
      call.say(Py_None);
    } else if (value.isBool()) {
      call.say(value.toBool() ? Py_True : Py_False);
    } else if (value.isIntList()) {
      Call::List sizes;
      for (const int64_t each : value.toIntList()) {
        sizes.push_back(integer_of(each).release());
      }
      call.say(tuple_of(sizes));
    } else {
      return false;
    }
    return true;
  }

  // A pair of geometry and offset. One of another item size counts in its own elements, which is
  // left to Python.
  static bool show(const Place& of, PyObject* pair, Tensors& made) {
    PyObject* geometry = PyTuple_GET_ITEM(pair, 0);
    const Layout& layout = layout_of(geometry);
    if (layout.is_lazy() || layout.itemsize != layout_of(of.geometry.get()).itemsize) {
      return false;
    }
    const int64_t offset = of.offset + integer(PyTuple_GET_ITEM(pair, 1));
    made.push_back(wrap(of.buffer.get(), geometry, layout, offset));
    return true;
  }

  // `x[i]` and `x[i:j]`: where it begins is computed (`viewing.stretches`).
  bool stretch(const Place& of, Given given, Tensors& made) const {
    const Layout& from = layout_of(of.geometry.get());
    if (given.size() != (is_row_ ? 3U : 4U) || !given[1].isInt() || !given[2].isInt()) {
      return false;
    }
    const int64_t dim = given[1].toInt();
    if (dim < 0 || dim >= static_cast<int64_t>(from.sizes.size())) {
      return false;
    }
    const int64_t size = from.sizes[dim];
    int64_t start = given[2].toInt();
    start += start < 0 ? size : 0;
    Call call(schema_.info);
    call.say(held(of.geometry.get()));
    call.say(integer_of(dim));
    if (is_row_) {
      if (start < 0 || start >= size) {
        return false;
      }
    } else {
      if (!given[3].isInt()) {
        return false;
      }
      int64_t end = given[3].toInt();
      end += end < 0 ? size : 0;
      start = std::min(std::max<int64_t>(start, 0), size);
      end = std::max(start, std::min(end, size));
      call.say(integer_of(end - start));
    }
    const Owned key = tuple_of(call.key);
    const Owned geometry = found(connected.stretches, key.get());
    if (!geometry || layout_of(geometry.get()).is_lazy()) {
      return false;
    }
    const int64_t offset = of.offset + start * from.strides[dim];
    made.push_back(wrap(of.buffer.get(), geometry.get(), layout_of(geometry.get()), offset));
    return true;
  }

  Schema schema_;
  bool is_row_;
  bool is_slice_;
};

} // namespace jgpu
