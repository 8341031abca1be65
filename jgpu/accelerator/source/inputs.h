// What a run of a program is given, for the executor: buffers that fit, and the tensors that its ops
// see of them.
//
// As `jgpu.broker.executor.programs.inputs`, which says what fits, and has what does not looked at.

#pragma once

#include "python.h"
#include "storages.h"
#include "straight.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <vector>

namespace jgpu {

constexpr auto inputs_with = "jgpu.inputs";

// One program's; nothing in it changes once it is made.
class Inputs {
 public:
  // (least bytes of each input, kinds of the parameters, views, those made anew at each run):
  // a view is (input, geometry as Python has it, parameter or -1, dtype or None, shape, stride),
  // where there is a dtype the tensor may be made here; one made anew is (input, parameter, bytes
  // touched at offset 0, bytes more an element).
  explicit Inputs(PyObject* told) {
    PyObject *least = nullptr, *kinds = nullptr, *views = nullptr, *lifted = nullptr;
    if (PyArg_ParseTuple(
            told, "O!O!O!O!", &PyTuple_Type, &least, &PyTuple_Type, &kinds, &PyTuple_Type, &views,
            &PyTuple_Type, &lifted) == 0) {
      raise();
    }
    least_ = places_of(least);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); ++i) {
      kinds_.push_back(held(PyTuple_GET_ITEM(kinds, i)));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); ++i) {
      add_view(PyTuple_GET_ITEM(views, i));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lifted); ++i) {
      const auto of = places_of(PyTuple_GET_ITEM(lifted, i));
      lifted_.push_back({of.at(0), of.at(1), of.at(2), of.at(3)});
    }
  }

  static Inputs* of(PyObject* capsule) {
    return static_cast<Inputs*>(PyCapsule_GetPointer(capsule, inputs_with));
  }

  // A list of the buffers of these numbers; none where one is not there, or anything does not fit.
  Owned fitting(PyObject* table, PyObject* numbers, PyObject* params) const {
    const auto count = static_cast<Py_ssize_t>(least_.size());
    if (PySequence_Fast_GET_SIZE(numbers) != count ||
        PySequence_Fast_GET_SIZE(params) != static_cast<Py_ssize_t>(kinds_.size())) {
      return Owned();
    }
    Owned made = checked(PyList_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      Owned buffer = found(table, PySequence_Fast_GET_ITEM(numbers, i));
      if (!buffer || poison_.of(buffer.get()).get() != Py_None ||
          bytes_of(buffer.get()) < least_[static_cast<size_t>(i)]) {
        return Owned();
      }
      PyList_SET_ITEM(made.get(), i, buffer.release());
    }
    for (size_t i = 0; i < kinds_.size(); ++i) {
      PyObject* value = PySequence_Fast_GET_ITEM(params, static_cast<Py_ssize_t>(i));
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != kinds_[i].get() ||
          (PyLong_CheckExact(value) && !is_in_range(value))) {
        return Owned();
      }
    }
    for (const Lifted& each : lifted_) {
      const auto offset = small(PySequence_Fast_GET_ITEM(params, static_cast<Py_ssize_t>(each.param)));
      const int64_t has = bytes_of(PyList_GET_ITEM(made.get(), static_cast<Py_ssize_t>(each.input)));
      if (!offset || *offset < 0 ||
          static_cast<__int128>(each.least) + static_cast<__int128>(*offset) * each.itemsize > has) {
        return Owned();
      }
    }
    return made;
  }

  // A list of the tensors that the program's ops see, of buffers and parameters that fit.
  Owned seen(PyObject* buffers, PyObject* params) const {
    Owned made = checked(PyList_New(static_cast<Py_ssize_t>(views_.size())));
    std::optional<c10::impl::ExcludeDispatchKeyGuard> below;
    std::optional<at::AutoGradMode> with_gradients;
    if (!lifted_.empty()) {
      below.emplace(above_kernels);
      with_gradients.emplace(true);
    }
    for (size_t i = 0; i < views_.size(); ++i) {
      const View& view = views_[i];
      PyObject* buffer = PySequence_Fast_GET_ITEM(buffers, static_cast<Py_ssize_t>(view.input));
      Owned tensor = view.param < 0
          ? known(view, buffer)
          : anew(view, buffer, PySequence_Fast_GET_ITEM(params, static_cast<Py_ssize_t>(view.param)));
      PyList_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), tensor.release());
    }
    return made;
  }

 private:
  struct View {
    int64_t input = 0, param = -1;
    Owned geometry;
    std::optional<at::ScalarType> dtype;
    Extents shape, stride;
  };
  struct Lifted {
    int64_t input, param, least, itemsize;
  };

  void add_view(PyObject* told) {
    View& made = views_.emplace_back();
    made.input = integer(PyTuple_GET_ITEM(told, 0));
    made.geometry = held(PyTuple_GET_ITEM(told, 1));
    made.param = integer(PyTuple_GET_ITEM(told, 2));
    PyObject* dtype = PyTuple_GET_ITEM(told, 3);
    if (THPDtype_Check(dtype)) {
      made.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    }
    made.shape = extents(PyTuple_GET_ITEM(told, 4));
    made.stride = extents(PyTuple_GET_ITEM(told, 5));
  }

  static int64_t bytes_of(PyObject* buffer) {
    return integer(slots.nbytes.of(buffer).get());
  }

  // As torch takes them anywhere, unsigned ones among them.
  static bool is_in_range(PyObject* number) {
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow <= 0) {
      return overflow == 0;
    }
    PyLong_AsUnsignedLongLong(number);
    const bool fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return fits;
  }

  static std::optional<int64_t> small(PyObject* number) {
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 ? std::optional(value) : std::nullopt;
  }

  // What was made before, or is from here on.
  static Owned known(const View& view, PyObject* buffer) {
    if (seen_.of(buffer).get() == view.geometry.get()) {
      return base_.of(buffer);
    }
    const Owned views = views_seen_.of(buffer);
    if (Owned tensor = found(views.get(), view.geometry.get())) {
      return tensor;
    }
    return checked(PyObject_CallMethodOneArg(buffer, names.view, view.geometry.get()));
  }

  static Owned anew(const View& view, PyObject* buffer, PyObject* offset) {
    const Owned base = base_.of(buffer);
    if (view.dtype && THPVariable_Check(base.get())) {
      const at::Tensor& tensor = THPVariable_Unpack(base.get());
      if (tensor.scalar_type() == *view.dtype) {
        return checked(THPVariable_Wrap(
            laid_over(tensor, *view.dtype, view.shape, view.stride, integer(offset))));
      }
    }
    return checked(PyObject_CallMethodObjArgs(
        buffer, names.private_view, view.geometry.get(), offset, nullptr));
  }

  static inline Slot poison_{names.poison}, base_{names.base}, seen_{names.seen};
  static inline Slot views_seen_{names.views};

  std::vector<int64_t> least_;
  std::vector<Owned> kinds_;
  std::vector<View> views_;
  std::vector<Lifted> lifted_;
};

inline PyObject* inputs_made(PyObject* told) {
  auto made = std::make_unique<Inputs>(told);
  PyObject* capsule = PyCapsule_New(made.get(), inputs_with, [](PyObject* object) {
    delete static_cast<Inputs*>(PyCapsule_GetPointer(object, inputs_with));
  });
  if (capsule != nullptr) {
    made.release();
  }
  return capsule;
}

} // namespace jgpu
