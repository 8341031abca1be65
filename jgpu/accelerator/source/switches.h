// What torch's getters say before each cut: `jgpu.device.flags.read_in_python`, in C++.
//
// The getters are made of what torch's context says, by functions that it has for everybody. Those
// are looked at first: where all say what they did, so do the getters, which are not asked then. In
// a release whose context has not all of them the getters are asked each time.

#pragma once

#include "python.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <tuple>

namespace jgpu {

template <typename Context, typename Precision, typename Backend, typename Op>
Backend backend_of(Precision (Context::*)(Backend, Op) const);
template <typename Context, typename Precision, typename Backend, typename Op>
Op op_of(Precision (Context::*)(Backend, Op) const);

template <typename Context>
concept TellsAll = requires(const Context& context) {
  context.deterministicAlgorithms();
  context.deterministicAlgorithmsWarnOnly();
  context.userEnabledCuDNN();
  context.benchmarkCuDNN();
  context.deterministicCuDNN();
  *context._SMCarveout_EXPERIMENTAL();
  context.allowFP16ReductionCuBLAS();
  context.allowBF16ReductionCuBLAS();
  context.allowFP16AccumulationCuBLAS();
  context.userEnabledMkldnn();
  context.deterministicMkldnn();
  context.userEnabledNNPACK();
  context.allowFP16ReductionCPU();
  decltype(backend_of(&Context::float32Precision))::CUDA;
  decltype(backend_of(&Context::float32Precision))::MKLDNN;
  decltype(op_of(&Context::float32Precision))::MATMUL;
  decltype(op_of(&Context::float32Precision))::CONV;
  decltype(op_of(&Context::float32Precision))::RNN;
};

using Told = std::array<int64_t, 21>;

// A number for each of what the getters read (`flags.read_in_python`).
template <TellsAll Context>
Told told_by(const Context& context) {
  using Backend = decltype(backend_of(&Context::float32Precision));
  using Op = decltype(op_of(&Context::float32Precision));
  const auto carveout = context._SMCarveout_EXPERIMENTAL();
  const auto precision = [&](Backend backend, Op op) {
    return static_cast<int64_t>(context.float32Precision(backend, op));
  };
  int64_t depthwise = 0;
  if constexpr (requires { context.cudnnDepthwiseKernel(); }) { // newer than the others
    depthwise = static_cast<int64_t>(context.cudnnDepthwiseKernel());
  }
  return {
      context.deterministicAlgorithms(),
      context.deterministicAlgorithmsWarnOnly(),
      context.userEnabledCuDNN(),
      context.benchmarkCuDNN(),
      context.deterministicCuDNN(),
      depthwise,
      carveout.has_value() ? int64_t{*carveout} : -1,
      static_cast<int64_t>(context.allowFP16ReductionCuBLAS()),
      static_cast<int64_t>(context.allowBF16ReductionCuBLAS()),
      context.allowFP16AccumulationCuBLAS(),
      context.userEnabledMkldnn(),
      context.deterministicMkldnn(),
      context.userEnabledNNPACK(),
      context.allowFP16ReductionCPU(),
      static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())),
      precision(Backend::CUDA, Op::MATMUL),
      precision(Backend::CUDA, Op::CONV),
      precision(Backend::CUDA, Op::RNN),
      precision(Backend::MKLDNN, Op::MATMUL),
      precision(Backend::MKLDNN, Op::CONV),
      precision(Backend::MKLDNN, Op::RNN),
  };
}

inline bool is_same(PyObject* one, PyObject* other) {
  if (one == other) {
    return true;
  }
  const int outcome = PyObject_RichCompareBool(one, other, Py_EQ);
  check(outcome);
  return outcome != 0;
}

// `calls` are pairs of a function and what it is given; `seen` is what they returned before.
inline PyObject* read_each(PyObject* calls, PyObject* seen) {
  const Py_ssize_t count = PyTuple_GET_SIZE(calls);
  const Owned read = checked(PyTuple_New(count));
  bool is_as_seen = PyTuple_GET_SIZE(seen) == count;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* call = PyTuple_GET_ITEM(calls, i);
    PyObject* given = PyTuple_GET_ITEM(call, 1);
    Owned made = checked(PyObject_Vectorcall(
        PyTuple_GET_ITEM(call, 0),
        &PyTuple_GET_ITEM(given, 0),
        static_cast<size_t>(PyTuple_GET_SIZE(given)),
        nullptr));
    is_as_seen = is_as_seen && is_same(made.get(), PyTuple_GET_ITEM(seen, i));
    PyTuple_SET_ITEM(read.get(), i, made.release());
  }
  return held(is_as_seen ? seen : read.get()).release();
}

// What the getters returned last, and what the context said before.
template <TellsAll Context>
PyObject* read_unless_told(PyObject* calls, PyObject* seen, const Context& context) {
  static auto& last = *new std::tuple<Owned, Owned, Told>(); // outlives Python
  const Told told = told_by(context);
  auto& [of, read, before] = last;
  if (calls == of.get() && seen == read.get() && told == before) {
    return held(seen).release();
  }
  Owned made = checked(read_each(calls, seen));
  of = held(calls);
  read = held(made.get());
  before = told;
  return made.release();
}

template <typename Context>
PyObject* read_all(PyObject* calls, PyObject* seen, const Context& context) {
  if constexpr (TellsAll<Context>) {
    return read_unless_told(calls, seen, context);
  } else {
    return read_each(calls, seen);
  }
}

} // namespace jgpu
